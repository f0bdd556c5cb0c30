"""Passages into a store, in bounded memory, one commit per part: what is there already is passed over."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Protocol

from decoupled.errors import InputError
from decoupled.index.record import Record, digest, part_name
from decoupled.index.store.base import Staged, Store
from decoupled.model.tokens import Passage

PART = 512
"""Passages per commit: a kill costs at most this many encodings."""
SAMPLE = 1024
"""Passages that a codec is fitted on, when it needs fitting."""
UPKEEP = 16
"""Commits between two updates of the search indexes while a build runs."""


@dataclass(frozen=True, kw_only=True)
class Added:
    """What `add` did."""

    added: int = 0
    unchanged: int = 0
    """Already there with the same content: not encoded again."""
    replaced: int = 0
    """Ids that were there with other content, or came twice; the last one stays."""
    seconds: float = 0.0
    duplicates: tuple[str, ...] = ()
    """The first few ids that came twice close together."""


Progress = Callable[[Added], None]
Encode = Callable[[Sequence[Passage]], list[Record]]


class Workers(Protocol):
    """Processes that encode parts of a build and write them, several at a time."""

    def stage(self, parts: Iterator[list[Passage]]) -> Iterator[list[Staged]]:
        """What became of each part, in the order of the parts; those that are ready come together."""


def checked(passages: Iterable[Passage]) -> Iterator[Passage]:
    """The passages, one by one; `InputError` for what is none."""
    if isinstance(passages, str | Path | Passage):
        raise InputError(
            f"add was given {str(passages)!r:.60}; give it a list of passages, or read_passages(FILE)"
        )
    for passage in passages:
        if not isinstance(passage, Passage):
            raise InputError(
                f"a passage is {passage!r:.60}; expected Passage(id=…, text=…), or what "
                "read_passages(FILE) gives"
            )
        if not isinstance(passage.id, str):
            raise InputError(f"the id of a passage is {passage.id!r:.60}; expected a string")
        yield passage


@dataclass
class Ingest:
    """One run of `add`: which passages are new or changed, what is on its way to the store, and the count."""

    store: Store
    progress: Progress | None = None
    added: int = 0
    unchanged: int = 0
    replaced: int = 0
    duplicates: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    pending: dict[str, list[int]] = field(default_factory=dict)
    """Digests of each id that is encoded but not stored yet, oldest first."""

    def run(self, stream: Iterator[Passage], encode: Encode) -> None:
        """Encode one part while the one before it is being written."""
        with ThreadPoolExecutor(1) as writer:
            writing: tuple[Future[int], list[Passage]] | None = None
            for number in count():
                part = list(islice(stream, PART))
                fresh = self.fresh(part) if part else []
                records = encode(fresh) if fresh else []
                if writing is not None:
                    self.replaced += writing[0].result()
                    self.stored(writing[1])
                    writing = None
                self.report()
                if not part:
                    break
                if fresh:
                    writing = writer.submit(self._write, records, number), fresh
        self.store.optimise()

    def run_with(self, workers: Workers, stream: Iterator[Passage]) -> None:
        """Let workers encode and write the parts, and commit them in their order."""
        sent: deque[list[Passage]] = deque()

        def parts() -> Iterator[list[Passage]]:
            while part := list(islice(stream, PART)):
                if fresh := self.fresh(part):
                    sent.append(fresh)
                    yield fresh

        waiting = 0
        for staged in workers.stage(parts()):
            self.replaced += self.store.commit(staged)
            for _ in staged:
                self.stored(sent.popleft())
            waiting += len(staged)
            if waiting >= UPKEEP:
                self.store.optimise()
                waiting = 0
            self.report()
        self.store.optimise()

    def fresh(self, part: Sequence[Passage]) -> list[Passage]:
        """The passages of a part that must be stored, each id once; they are pending from now on."""
        unique: dict[str, Passage] = {}
        for passage in part:
            if passage.id in unique:
                self.duplicates.append(passage.id)
                self.replaced += 1
            unique[passage.id] = passage
        fresh = []
        for passage, old in zip(
            unique.values(), self.store.snapshot.digests(list(unique)), strict=True
        ):
            pending, new = self.pending.get(passage.id), digest(passage)
            if new == (pending[-1] if pending else old):
                self.unchanged += 1
            else:
                fresh.append(passage)
                self.pending.setdefault(passage.id, []).append(new)
        return fresh

    def stored(self, part: Sequence[Passage]) -> None:
        """A part that was pending is stored."""
        self.added += len(part)
        for passage in part:
            pending = self.pending[passage.id]
            pending.pop(0)
            if not pending:
                del self.pending[passage.id]

    def report(self) -> None:
        """Tell the caller how far it is."""
        if self.progress is not None:
            self.progress(self.done())

    def done(self) -> Added:
        """The count as it stands."""
        return Added(
            added=self.added,
            unchanged=self.unchanged,
            replaced=self.replaced,
            seconds=time.perf_counter() - self.started,
            duplicates=tuple(self.duplicates[:10]),
        )

    def _write(self, records: list[Record], number: int) -> int:
        replaced = self.store.append(records, part=part_name(records))
        if number % UPKEEP == UPKEEP - 1:
            self.store.optimise()
        return replaced
