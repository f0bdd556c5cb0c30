"""What takes long to compute, in blocks on disk: a stopped run goes on with the first one that is missing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.train.place import Progress, counted

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Cache:
    """Arrays under names, in a folder; None computes without keeping anything."""

    folder: Path | None = None
    progress: Progress | None = None

    def blocks(self, name: str, total: int, size: int, make: Callable[[slice], Array]) -> Array:
        """The arrays that `make` gives for stretches of up to `size` out of `total`, one after the other."""
        blocks, count = [], counted(name, self.progress)
        for number, start in enumerate(range(0, total, size)):
            stop = min(start + size, total)
            block = partial(make, slice(start, stop))
            blocks.append(self.kept(f"{name}-{number:05d}", block))
            count(stop, total)
        return np.concatenate(blocks)

    def at(self, *names: str) -> Cache:
        """A folder inside it, named after what its content depends on."""
        name = hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]
        return replace(self, folder=self.folder / name if self.folder else None)

    def kept(self, name: str, make: Callable[[], Array]) -> Array:
        """The array of that name; made and written, whole or not at all, where it is not there yet."""
        if self.folder is None:
            return make()
        path = self.folder / f"{name}.npy"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(f".{os.getpid()}.draft")
            with draft.open("wb") as file:
                np.save(file, make(), allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        return np.load(path, allow_pickle=False)
