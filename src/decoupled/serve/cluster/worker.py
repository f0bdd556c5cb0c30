"""The worker of a build: it encodes a part and writes it. One per process, on any engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from decoupled.index.index import Index
from decoupled.index.store.commit import Staged
from decoupled.index.store.local import Folder
from decoupled.index.store.location import location_of
from decoupled.model.tokens import Passage

DEPTH = 3
"""Parts that each worker may be ahead of the slowest: so many texts wait in memory."""


def address_of(path: str | Path) -> str:
    """The path as processes with another working folder can use it."""
    location = location_of(path)
    return str(location.path.resolve()) if isinstance(location, Folder) else location.name


class Encoder:
    """An index opened for reading; staging needs no right to write."""

    def __init__(self, path: str, runtime: str = "auto") -> None:
        self._index = Index.open(path, runtime=runtime)

    def stage(self, passages: Sequence[Passage]) -> Staged:
        """Encode a part and write it. Asked twice, it writes twice, and only what is committed counts."""
        return self._index.stage(passages)


def in_order(
    parts: Iterator[list[Passage]],
    *,
    send: Callable[[list[Passage]], Any],
    is_done: Callable[[Any], bool],
    result: Callable[[Any], Staged],
    ahead: int,
) -> Iterator[list[Staged]]:
    """Send parts, at most `ahead` of the first that is not done; their results in the order of the parts."""
    waiting = [send(part) for part in islice(parts, ahead)]
    while waiting:
        ready = [result(waiting.pop(0))]
        while waiting and is_done(waiting[0]):
            ready.append(result(waiting.pop(0)))
        waiting += [send(part) for part in islice(parts, ahead - len(waiting))]
        yield ready
