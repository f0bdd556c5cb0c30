"""What takes long to compute, in blocks on disk: a stopped run goes on with the first one that is missing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from decoupled.train.data.cache import Array, Cache
from decoupled.train.place import counted


def in_blocks(
    cache: Cache, name: str, total: int, size: int, make: Callable[[slice], Array]
) -> Array:
    """The concatenated arrays that `make` gives for stretches of up to `size` out of `total`."""
    blocks, count = [], counted(name, cache.progress)
    for number, start in enumerate(range(0, total, size)):
        stop = min(start + size, total)
        blocks.append(cache.kept(f"{name}-{number:05d}", partial(make, slice(start, stop))))
        count(stop, total)
    return np.concatenate(blocks)
