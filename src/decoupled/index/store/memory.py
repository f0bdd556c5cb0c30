"""A store of records in this process, found by their ids alone.

It stands for a store until there are records, and for Lance where that is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.record import Excerpt, Record, check_records
from decoupled.index.store.base import (
    Ranking,
    Rows,
    Share,
    Snapshot,
    Staged,
    Store,
    Where,
    check_vector,
    missing,
)
from decoupled.model.states import Encoded
from decoupled.model.tokens import Passage

_NOTHING = Ranking(np.zeros(0, np.int64), np.zeros(0, np.float32))


class MemoryStore(Store, Snapshot):
    """Implements `Store` for records that are only added; it is its own snapshot. A search finds nothing."""

    def __init__(self, *, token_bytes: int, width: int | None = None) -> None:
        self._token_bytes, self._width = token_bytes, width
        self._records: list[Record] = []
        self._rows: dict[str, list[int]] = {}
        self.version, self.snapshot = 0, self

    @classmethod
    def exists(cls, uri: str | Path) -> bool:
        """Whether `open` would find a store, which it never does."""
        return False

    @classmethod
    def create(cls, uri: str | Path, *, token_bytes: int, width: int | None = None) -> MemoryStore:
        """A new, empty store."""
        return cls(token_bytes=token_bytes, width=width)

    @classmethod
    def open(
        cls, uri: str | Path, *, write: bool = False, share: Share | None = None
    ) -> MemoryStore:
        """Raise: what was in memory is gone."""
        raise InputError(f"{uri} was held in memory and is gone; create it again")

    def refresh(self) -> MemoryStore:
        """The only version."""
        return self

    def stage(self, records: Sequence[Record], *, part: str) -> Staged:
        """Check records and hold them."""
        check_records(records, token_bytes=self._token_bytes, width=self._width)
        ids = tuple(dict.fromkeys(record.id for record in records))
        return Staged(part=part, ids=ids, content=list(records))

    def commit(self, staged: Sequence[Staged]) -> int:
        """Add the records of staged parts."""
        for part in staged:
            self._refuse(part.ids)
            for record in part.content:
                self._rows.setdefault(record.id, []).append(len(self._records))
                self._records.append(record)
        self.version += 1
        return 0

    def relabel(self, passages: Sequence[Passage]) -> None:
        """Raise for passages that are there."""
        self._refuse([passage.id for passage in passages])

    def delete(self, ids: Sequence[str]) -> int:
        """Raise for passages that are there."""
        self._refuse(ids)
        return 0

    def _refuse(self, ids: Sequence[str]) -> None:
        if there := [ident for ident in ids if ident in self._rows]:
            raise InputError(f"passage {there[0]!r:.80} is held in memory, where none can change")

    def close(self) -> None:
        """Do nothing: there is no lock."""
        return

    def __len__(self) -> int:
        return len(self._records)

    @property
    def passages(self) -> int:
        """Distinct ids."""
        return len(self._rows)

    @property
    def documents(self) -> int:
        """Distinct documents."""
        return len({record.meta.get("document", record.id) for record in self._records})

    def lexical(
        self, query: str, k: int, where: Where | None = None, rows: Rows | None = None
    ) -> Ranking:
        """Find nothing."""
        return _NOTHING

    def dense(
        self,
        vector: npt.NDArray[np.float32],
        k: int,
        where: Where | None = None,
        rows: Rows | None = None,
    ) -> Ranking:
        """Find nothing."""
        check_vector(vector, self._width)
        return _NOTHING

    def vectors(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Zeros, since a search never asks."""
        return np.zeros((len(rows), self._width or 0), np.float32)

    def locate(self, ids: Sequence[str]) -> Rows:
        """Rows of all windows of each id."""
        if lost := [ident for ident in ids if ident not in self._rows]:
            raise missing(lost)
        return np.array([row for ident in ids for row in self._rows[ident]], np.int64)

    def mine(self, rows: Rows) -> Rows:
        """All rows: this store has no shares."""
        return rows

    def digests(self, ids: Sequence[str]) -> list[int | None]:
        """The digest that each id was stored with, or None."""
        return [self._records[self._rows[i][0]].digest if i in self._rows else None for i in ids]

    def rows(self) -> Rows:
        """All rows."""
        return np.arange(len(self._records))

    def state_keys(self, rows: Rows) -> npt.NDArray[np.int64]:
        """The rows themselves."""
        return np.asarray(rows, np.int64)

    def leads(self, rows: Rows) -> npt.NDArray[np.int64]:
        """How many tokens of each row come before those of its text."""
        return np.array([self._records[int(row)].lead for row in rows], np.int64)

    def states(self, rows: Rows) -> Encoded:
        """The codec's bytes of these rows."""
        none = Encoded(np.zeros((0, self._token_bytes), np.uint8), np.zeros(0, np.int64))
        return Encoded.stack([self._records[int(r)].states for r in rows]) if len(rows) else none

    def texts(self, rows: Rows) -> list[Excerpt]:
        """The records themselves, which are excerpts and more."""
        return [self._records[int(row)] for row in rows]

    def scan(self, where: Where | None = None) -> Iterator[Excerpt]:
        """Every record in turn; no filter finds any."""
        return iter(() if where else self._records)
