"""A store that lives and dies with its process, for tests and for a handful of passages.

Its BM25 neither stems nor drops frequent words; otherwise it behaves as the embedded store does.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from decoupled.errors import IndexBusy, InputError
from decoupled.index.record import (
    Excerpt,
    Record,
    check_records,
    digest,
    half_precision,
    tags_of,
)
from decoupled.index.store.base import (
    Ranking,
    Rows,
    Share,
    Staged,
    Store,
    Where,
    check_vector,
    missing,
    ranking,
)
from decoupled.index.store.filters import conditions
from decoupled.model.states import Encoded
from decoupled.model.tokens import Passage

# BM25's usual constants: how soon repeated words saturate, how much length counts.
_K1, _B = 1.2, 0.75


@dataclass(eq=False, kw_only=True)
class MemorySnapshot:
    """One version of a `MemoryStore`."""

    records: Mapping[int, Record]
    parts: frozenset[str]
    version: int
    token_bytes: int
    width: int | None

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def passages(self) -> int:
        """Distinct ids."""
        return len(self._rows)

    @cached_property
    def documents(self) -> int:
        """Distinct documents."""
        return len({r.meta.get("document", r.id) for r in self.records.values()})

    @cached_property
    def _rows(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for row, record in self.records.items():
            rows.setdefault(record.id, []).append(row)
        return rows

    @cached_property
    def _words(self) -> dict[int, Counter[str]]:
        return {row: Counter(words(f"{r.title}\n{r.text}")) for row, r in self.records.items()}

    def lexical(
        self, query: str, k: int, where: Where | None = None, rows: Rows | None = None
    ) -> Ranking:
        """The `k` best rows by BM25."""
        lengths = {row: sum(count.values()) for row, count in self._words.items()}
        mean = sum(lengths.values()) / max(len(lengths), 1)
        scores: dict[int, float] = {}
        for word in words(query):
            holders = {row: count[word] for row, count in self._words.items() if count[word]}
            # Inverse document frequency, never negative, as Lucene computes it.
            rarity = math.log(1 + (len(lengths) - len(holders) + 0.5) / (len(holders) + 0.5))
            for row, count in holders.items():
                damp = _K1 * (1 - _B + _B * lengths[row] / mean)
                scores[row] = scores.get(row, 0.0) + rarity * count * (_K1 + 1) / (count + damp)
        return self._ranked(scores, k, where, rows)

    def dense(
        self,
        vector: npt.NDArray[np.float32],
        k: int,
        where: Where | None = None,
        rows: Rows | None = None,
    ) -> Ranking:
        """The `k` rows with the largest inner products."""
        check_vector(vector, self.width)
        vectors = {row: r.vector for row, r in self.records.items() if r.vector is not None}
        return self._ranked({row: float(v @ vector) for row, v in vectors.items()}, k, where, rows)

    def vectors(self, rows: Rows) -> npt.NDArray[np.float32]:
        """`[R,V]` the vectors of these rows, in their order; zeros where there is none."""
        vectors = (self.records[row].vector for row in rows.tolist())
        none = np.zeros(self.width or 0, np.float32)
        return np.stack([none if vector is None else vector for vector in vectors]).astype(
            np.float32
        )

    def _ranked(
        self, scores: Mapping[int, float], k: int, where: Where | None, only: Rows | None
    ) -> Ranking:
        named = None if only is None else set(only.tolist())

        def passes(record: Record) -> bool:
            strings = {"id": [record.id], "title": [record.title], "tags": tags_of(record.meta)}
            return all(c.holds(strings[c.field]) for c in conditions(where or {}))

        rows = [
            row for row in scores if (named is None or row in named) and passes(self.records[row])
        ]
        values = np.array([scores[row] for row in rows], np.float32)
        return ranking(np.array(rows, np.int64), values, k)

    def locate(self, ids: Sequence[str]) -> Rows:
        """Rows of all windows of each id."""
        if lost := [i for i in ids if i not in self._rows]:
            raise missing(lost)
        return np.array([row for i in ids for row in self._rows[i]], np.int64)

    def mine(self, rows: Rows) -> Rows:
        """All rows: this store has no shares."""
        return rows

    def digests(self, ids: Sequence[str]) -> list[int | None]:
        """The digest that each id was stored with, or None."""
        return [self.records[self._rows[i][0]].digest if i in self._rows else None for i in ids]

    def rows(self) -> Rows:
        """All rows."""
        return np.array(list(self.records), np.int64)

    def state_keys(self, rows: Rows) -> npt.NDArray[np.int64]:
        """The rows themselves, which are never given twice."""
        return np.asarray(rows, np.int64)

    def leads(self, rows: Rows) -> npt.NDArray[np.int64]:
        """How many tokens of each row come before those of its text."""
        return np.array([self.records[int(row)].lead for row in rows], np.int64)

    def states(self, rows: Rows) -> Encoded:
        """The codec's bytes of these rows."""
        if not len(rows):
            return Encoded(np.zeros((0, self.token_bytes), np.uint8), np.zeros(0, np.int64))
        return Encoded.stack([self.records[int(row)].states for row in rows])

    def texts(self, rows: Rows) -> list[Excerpt]:
        """The records themselves, which are excerpts and more."""
        return [self.records[int(row)] for row in rows]

    def scan(self) -> Iterator[Excerpt]:
        """Every record in turn."""
        return iter(self.records.values())


class _Shared:
    """What the stores of one name see: the newest version, and whether one of them writes."""

    def __init__(self, newest: MemorySnapshot) -> None:
        self.newest, self.next_row, self.written = newest, 0, True


class MemoryStore(Store):
    """Implements `Store` in a dictionary, which goes when the last store of its name does."""

    _named: ClassVar[WeakValueDictionary[str, _Shared]] = WeakValueDictionary()

    def __init__(self, *, token_bytes: int, width: int | None = None) -> None:
        self.snapshot = MemorySnapshot(
            records={}, parts=frozenset(), version=0, token_bytes=token_bytes, width=width
        )
        self._shared, self._write = _Shared(self.snapshot), True

    @classmethod
    def exists(cls, uri: str | Path) -> bool:
        """Whether a store of that name is alive."""
        return str(uri) in cls._named

    @classmethod
    def create(cls, uri: str | Path, *, token_bytes: int, width: int | None = None) -> MemoryStore:
        """A new, empty store, open for writing."""
        if cls.exists(uri):
            raise InputError(f"{uri} already holds an index; open it, or choose another name")
        store = cls(token_bytes=token_bytes, width=width)
        cls._named[str(uri)] = store._shared
        return store

    @classmethod
    def open(
        cls, uri: str | Path, *, write: bool = False, share: Share | None = None
    ) -> MemoryStore:
        """A further store on the same records; it reads all of them, whatever its share."""
        if (shared := cls._named.get(str(uri))) is None:
            raise InputError(f"{uri} holds no index; make one with MemoryStore.create")
        if write and shared.written:
            raise IndexBusy(f"{uri} is being written; close the store that writes")
        store = cls(token_bytes=shared.newest.token_bytes, width=shared.newest.width)
        store._shared, store._write, shared.written = shared, write, shared.written or write
        store.refresh()
        return store

    def refresh(self) -> MemorySnapshot:
        """Move to the newest version and return it."""
        self.snapshot = self._shared.newest
        return self.snapshot

    def stage(self, records: Sequence[Record], *, part: str) -> Staged:
        """Check records and hold copies of them."""
        now = self.snapshot
        check_records(records, token_bytes=now.token_bytes, width=now.width)
        held = []
        for record in records:
            # Only to raise for metadata that the embedded store would refuse.
            tags_of(record.meta)
            half = half_precision(record.vector)
            vector = None if half is None else half.astype(np.float32)
            held.append(replace(record, states=record.states.copy(), vector=vector))
        return Staged(part=part, ids=tuple(dict.fromkeys(r.id for r in records)), content=held)

    def commit(self, staged: Sequence[Staged]) -> int:
        """Add the records of staged parts; an id that is there already is replaced."""
        replaced = 0
        for part in staged:
            now, new = self.snapshot, set(part.ids)
            kept = {row: r for row, r in now.records.items() if r.id not in new}
            replaced += now.passages - len({r.id for r in kept.values()})
            first = self._shared.next_row
            self._commit(kept | dict(enumerate(part.content, first)), now.parts | {part.part})
            self._shared.next_row = first + len(part.content)
        return replaced

    def relabel(self, passages: Sequence[Passage]) -> None:
        """Give passages other metadata."""
        now, new = self.snapshot, {passage.id: passage for passage in passages}
        records = dict(now.records)
        for row, record in now.records.items():
            if (passage := new.get(record.id)) is not None:
                records[row] = replace(record, meta=passage.meta, digest=digest(passage))
        self._commit(records, now.parts)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove all windows of these ids."""
        now, gone = self.snapshot, set(ids)
        kept = {row: r for row, r in now.records.items() if r.id not in gone}
        if len(kept) < len(now):
            self._commit(kept, now.parts)
        return now.passages - self.snapshot.passages

    def _commit(self, records: Mapping[int, Record], parts: frozenset[str]) -> None:
        if not self._write:
            raise IndexBusy("this store was opened for reading; open it with write=True")
        version = self.snapshot.version + 1
        self.snapshot = replace(self.snapshot, records=records, parts=parts, version=version)
        self._shared.newest = self.snapshot

    def close(self) -> None:
        """Let another writer in."""
        self._shared.written, self._write = self._shared.written and not self._write, False


def words(text: str) -> list[str]:
    """Runs of letters and digits, in lower case."""
    return re.findall(r"\w+", text.lower())
