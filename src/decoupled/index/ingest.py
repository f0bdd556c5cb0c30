"""Passages into a store, in bounded memory, one commit per part: what is there already is passed over."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from logging import getLogger
from pathlib import Path
from typing import Protocol

import numpy as np

from decoupled.errors import InputError
from decoupled.index.record import Record, digest, part_name
from decoupled.index.store.base import Staged, Store
from decoupled.model.language import unread_language
from decoupled.model.tokens import Passage, Tokenizer

logger = getLogger(__name__)

PART = 2048
"""Most passages of one commit."""
PART_SECONDS = 3.0
"""About how many seconds a part takes to encode: that much work is lost when a build is killed."""
FIRST_CHARS, PART_CHARS = 1 << 15, 1 << 18
"""Characters of the first commit, and of every part that goes to another process."""
LOOKED_UP = 512
"""Passages that are compared with what is stored at a time."""
SAMPLE = 1024
"""Passages that a codec is fitted on, when it needs fitting."""
LANGUAGE_SAMPLE = 100
"""Passages whose language is looked at."""
UPKEEP = 8192
"""Passages between two updates of the search indexes while a build runs."""


@dataclass(frozen=True, kw_only=True)
class Added:
    """The counts of one run of `add`."""

    added: int = 0
    unchanged: int = 0
    """Passages that were there with the same content, and were not encoded again."""
    replaced: int = 0
    """Ids that were there with other content, or came twice; the last one stays."""
    tokens: int = 0
    """Tokens that were encoded for what was added."""
    seconds: float = 0.0
    duplicates: tuple[str, ...] = ()
    """The first few ids that came twice close together."""
    share: float = 1.0
    """Share of the characters read so far that are stored; the rest waits to be encoded."""

    def __str__(self) -> str:
        rate = self.tokens / self.seconds if self.seconds else 0.0
        return f"{self.added + self.unchanged} passages, {self.tokens:,} tokens, {rate:,.0f}/s"


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """The bytes of an index before and after `compact`."""

    index: str
    before: int
    after: int
    waiting: int
    """Bytes that are kept for readers of older versions, and that a later run frees."""

    def to_json(self) -> dict[str, int]:
        """The sizes, as `compact --json` prints them."""
        return {"bytes_before": self.before, "bytes": self.after, "bytes_waiting": self.waiting}

    def lines(self) -> Iterator[str]:
        """Lines for a terminal: what was freed, and what can be later, or now if no one is reading."""
        sizes = (self.after, self.before - self.after, self.waiting)
        now, freed, waiting = (n / 1e6 for n in sizes)
        word = "freed" if freed > -0.05 else "more"  # not "0.0 MB more"
        yield f"{self.index}: {now:.1f} MB, {abs(freed):.1f} MB {word}"
        if waiting >= 0.1:
            kept = f"{waiting:.1f} MB are kept for an hour, for readers of earlier versions"
            yield f"{kept}: run it again then, or with --now if no one is reading"


Progress = Callable[[Added], None]
Encode = Callable[[Sequence[Passage]], list[Record]]


class Workers(Protocol):
    """Processes that encode parts of a build and write them, several at a time."""

    def stage(self, parts: Iterator[list[Passage]]) -> Iterator[list[Staged]]:
        """Yield the staged parts in their order; those that are ready at once come in one list."""


def checked(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Yield the passages one by one; raises `InputError` for anything that is not a passage."""
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


def with_language_check(
    passages: Iterator[Passage], tokenizer: Callable[[], Tokenizer]
) -> Iterator[Passage]:
    """Yield the passages; a warning says if the first ones are in a language that the model does not read."""
    texts: list[str] = []
    for passage in passages:
        yield passage
        texts.append(passage.text)
        if len(texts) == LANGUAGE_SAMPLE:
            break
    name = unread_language(tokenizer(), texts) if texts else None
    if name is not None:
        logger.warning(
            "the passages seem to be in %s, which this model was not made for: searches will find little. "
            "Build the index with a multilingual checkpoint instead (--model)",
            name,
        )
    yield from passages


@dataclass
class Ingest:
    """One run of `add`: which passages are new or changed, what is on its way to the store, and the count."""

    store: Store
    progress: Progress | None = None
    added: int = 0
    unchanged: int = 0
    replaced: int = 0
    tokens: int = 0
    duplicates: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    pending: dict[str, list[int]] = field(default_factory=dict)
    """Digests of each id that is encoded but not stored yet, oldest first."""
    _chars: int = field(default_factory=lambda: FIRST_CHARS)
    _read: int = 0
    _done: int = 0
    """Characters that are stored, of those that were read."""
    _waiting: int = 0
    """Passages that the search indexes do not have yet."""

    def run(self, stream: Iterator[Passage], encode: Encode) -> None:
        """Encode one part while the one before it is being written; a part is a few seconds of work."""
        writing: tuple[Future[int], list[Passage]] | None = None
        # One thread: parts are committed in their order, and memory holds two of them.
        with ThreadPoolExecutor(1) as writer:
            for part in self.parts(stream):
                began = time.perf_counter()
                records = encode(part)
                rate = sum(map(_size, part)) / (time.perf_counter() - began)
                # At most four times more or less: one odd part must not change it beyond reason.
                self._chars = int(np.clip(rate * PART_SECONDS, self._chars / 4, self._chars * 4))
                self.tokens += sum(len(record.states) for record in records)
                self._finish(writing)
                writing = writer.submit(self._write, records), part
            self._finish(writing)
        self.store.optimise()

    def run_with(self, workers: Workers, stream: Iterator[Passage]) -> None:
        """Let workers encode and write the parts, and commit them in their order."""
        sent: deque[list[Passage]] = deque()

        def parts() -> Iterator[list[Passage]]:
            self._chars = PART_CHARS
            for part in self.parts(stream):
                sent.append(part)
                yield part

        for staged in workers.stage(parts()):
            self.replaced += self.store.commit(staged)
            for _ in staged:
                self._waiting += len(sent[0])
                self.stored(sent.popleft())
            self._upkeep()
            self.report()
        self.store.optimise()

    def parts(self, stream: Iterator[Passage]) -> Iterator[list[Passage]]:
        """Cut what must be stored into parts of about `_chars` characters, each id once in a part."""
        part: dict[str, Passage] = {}
        held = 0
        while block := list(islice(stream, min(LOOKED_UP, PART))):
            for passage in self.fresh(block):
                # A store takes each id once in a part, so its second content begins the next part.
                if passage.id in part or held >= self._chars or len(part) >= PART:
                    yield list(part.values())
                    part, held = {}, 0
                part[passage.id] = passage
                held += _size(passage)
            self.report()
        if part:
            yield list(part.values())

    def fresh(self, part: Sequence[Passage]) -> list[Passage]:
        """The passages of a part that must be stored, each id once; they are pending from now on."""
        unique: dict[str, Passage] = {}
        for passage in part:
            if passage.id in unique:
                self.duplicates.append(passage.id)
                self.replaced += 1
            unique[passage.id] = passage
        fresh, changed = [], []
        for passage, old in zip(
            unique.values(), self.store.snapshot.digests(list(unique)), strict=True
        ):
            pending, new = self.pending.get(passage.id), digest(passage)
            # What is on its way counts before what is stored: it will have replaced that.
            if new == (pending[-1] if pending else old):
                self.unchanged += 1
            # Perhaps only its metadata changed, which needs no encoding.
            elif old is not None and not pending:
                changed.append(passage)
            else:
                fresh.append(passage)
        fresh += self._with_other_text(changed) if changed else []
        for passage in fresh:
            self.pending.setdefault(passage.id, []).append(digest(passage))
        size = sum(map(_size, part))
        self._read, self._done = self._read + size, self._done + size - sum(map(_size, fresh))
        return fresh

    def _with_other_text(self, changed: list[Passage]) -> list[Passage]:
        """The changed passages that must be encoded again; where only metadata changed, it is stored here."""
        snapshot = self.store.snapshot
        stored = snapshot.texts(snapshot.locate([passage.id for passage in changed]))
        same = {e.id: (e.text, e.title, e.meta.get("structure")) for e in stored if not e.window}
        # Only whole texts are compared: a passage of several windows is encoded again.
        long = {e.id for e in stored if e.window}
        kept = [
            p
            for p in changed
            if p.id not in long and same[p.id] == (p.text, p.title, p.meta.get("structure"))
        ]
        if kept:
            self.store.relabel(kept)
            self.unchanged += len(kept)
        moved = {passage.id for passage in kept}
        return [passage for passage in changed if passage.id not in moved]

    def stored(self, part: Sequence[Passage]) -> None:
        """Count a part as stored, and forget that its passages were pending."""
        self.added += len(part)
        self._done += sum(map(_size, part))
        for passage in part:
            pending = self.pending[passage.id]
            pending.pop(0)
            if not pending:
                del self.pending[passage.id]

    def report(self) -> None:
        """Give the caller the counts so far."""
        if self.progress is not None:
            self.progress(self.done())

    def done(self) -> Added:
        """The counts as they stand now."""
        return Added(
            added=self.added,
            unchanged=self.unchanged,
            replaced=self.replaced,
            tokens=self.tokens,
            seconds=time.perf_counter() - self.started,
            duplicates=tuple(self.duplicates[:10]),
            share=self._done / self._read if self._read else 1.0,
        )

    def _write(self, records: list[Record]) -> int:
        replaced = self.store.append(records, part=part_name(records))
        self._waiting += len(records)
        self._upkeep()
        return replaced

    def _finish(self, writing: tuple[Future[int], list[Passage]] | None) -> None:
        if writing is not None:
            self.replaced += writing[0].result()
            self.stored(writing[1])
        self.report()

    def _upkeep(self) -> None:
        if self._waiting >= UPKEEP:
            self.store.optimise()
            self._waiting = 0


def _size(passage: Passage) -> int:
    return len(passage.title) + len(passage.text)
