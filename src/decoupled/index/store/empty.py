"""The store of an index to which nothing was added yet: every question finds no records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.record import Excerpt, Record
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


class EmptyStore(Store, Snapshot):
    """Implements `Store` for an index without records; it is its own snapshot."""

    def __init__(self, *, token_bytes: int, width: int | None = None) -> None:
        self._token_bytes, self._width = token_bytes, width
        self.version, self.snapshot = 0, self

    @classmethod
    def exists(cls, uri: str | Path) -> bool:
        """Whether `open` would find a store, which it never does."""
        return False

    @classmethod
    def create(cls, uri: str | Path, *, token_bytes: int, width: int | None = None) -> EmptyStore:
        """An empty store."""
        return cls(token_bytes=token_bytes, width=width)

    @classmethod
    def open(cls, uri: str | Path, *, write: bool = False, share: Share | None = None) -> Store:
        """Raise: there is nothing to open."""
        raise InputError(f"{uri} holds no passages; add some first")

    def refresh(self) -> EmptyStore:
        """The only version."""
        return self

    def stage(self, records: Sequence[Record], *, part: str) -> Staged:
        """Raise: a store that holds records is created when the first ones come."""
        raise InputError("an empty store takes no records; create one that does")

    def commit(self, staged: Sequence[Staged]) -> int:
        """Add nothing."""
        return 0

    def relabel(self, passages: Sequence[Passage]) -> None:
        """Change nothing."""

    def delete(self, ids: Sequence[str]) -> int:
        """Remove nothing."""
        return 0

    def close(self) -> None:
        """Do nothing: there is no lock."""

    def __len__(self) -> int:
        return 0

    passages = documents = 0

    def lexical(
        self, query: str, k: int, where: Where | None = None, rows: Rows | None = None
    ) -> Ranking:
        """No rows."""
        return _NOTHING

    def dense(
        self,
        vector: npt.NDArray[np.float32],
        k: int,
        where: Where | None = None,
        rows: Rows | None = None,
    ) -> Ranking:
        """No rows."""
        check_vector(vector, self._width)
        return _NOTHING

    def vectors(self, rows: Rows) -> npt.NDArray[np.float32]:
        """No vectors."""
        return np.zeros((0, self._width or 0), np.float32)

    def locate(self, ids: Sequence[str]) -> Rows:
        """No rows; any id is a `MissingRecord`."""
        if ids:
            raise missing(ids)
        return _NOTHING.rows

    def mine(self, rows: Rows) -> Rows:
        """All rows: this store has no shares."""
        return rows

    def digests(self, ids: Sequence[str]) -> list[int | None]:
        """None for every id."""
        return [None] * len(ids)

    def rows(self) -> Rows:
        """No rows."""
        return _NOTHING.rows

    def state_keys(self, rows: Rows) -> npt.NDArray[np.int64]:
        """No numbers."""
        return rows

    def leads(self, rows: Rows) -> npt.NDArray[np.int64]:
        """No numbers."""
        return rows

    def states(self, rows: Rows) -> Encoded:
        """No bytes."""
        return Encoded(np.zeros((0, self._token_bytes), np.uint8), np.zeros(0, np.int64))

    def texts(self, rows: Rows) -> list[Excerpt]:
        """No texts."""
        return []

    def scan(self, where: Where | None = None) -> Iterator[Excerpt]:
        """No records."""
        return iter(())
