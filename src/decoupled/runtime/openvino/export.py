"""A model folder made ready for int8: its activations calibrated on pairs of texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from decoupled.errors import InputError
from decoupled.model import folder
from decoupled.model.tokens import Ids, Tokenizer
from decoupled.runtime.openvino.calibrate import calibrate, save_ranges

PAIRS = 256
"""Pairs that calibration reads: more moved no range of the starter model by a hundredth."""


def export_int8(
    path: Path,
    pairs: Sequence[tuple[str, str]],
    *,
    limit: int = PAIRS,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Calibrate a model folder on (query, passage) texts; says what was written."""
    spec = folder.read_spec(path)
    chosen = spread(pairs, limit)
    if not chosen:
        raise InputError("calibration needs pairs of query and passage, and got none")
    tokenizer = folder.read_tokenizer(path, spec)
    begun = time.perf_counter()
    ranges = calibrate(spec, folder.read_tensors(path), _tokens(tokenizer, chosen, progress))
    file = save_ranges(path, ranges, {"pairs": str(len(chosen))})
    return {
        "file": str(file),
        "bytes": file.stat().st_size,
        "pairs": len(chosen),
        "inputs": len(ranges),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def spread(pairs: Sequence[tuple[str, str]], limit: int) -> list[tuple[str, str]]:
    """At most `limit` pairs, evenly from the whole list."""
    step = max(1, len(pairs) // limit)
    return list(islice(pairs[::step], limit))


def _tokens(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], progress: Callable[[int], None]
) -> Iterator[tuple[Ids, Ids]]:
    queries = tokenizer.queries([query for query, _ in pairs])
    for query, windows in zip(queries, tokenizer.windows([p for _, p in pairs]), strict=True):
        yield query, windows[0].ids
        progress(1)
