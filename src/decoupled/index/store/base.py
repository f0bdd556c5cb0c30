"""What a store can do. Writing goes through a `Store`, reading through a `Snapshot` of one version.

A row is an opaque integer that names a record in the snapshot it came from; keep ids, not rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError, MissingRecord
from decoupled.index.record import Excerpt, Record
from decoupled.model.states import Encoded
from decoupled.model.tokens import Passage

Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
Where = Mapping[str, Any]

KEEP = timedelta(hours=1)
"""How long a snapshot stays readable after a newer version, unless `compact` is told otherwise."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """Rows and their scores, best first; equal scores in the order of their rows."""

    rows: Rows
    scores: Scores

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, kw_only=True)
class Share:
    """One of `count` disjoint shares of the passages, told apart by the keys of their ids.

    A reader of a share searches everything, so that scores and ranks are those of the whole, and then
    answers for its own passages alone.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.count:
            raise InputError(f"share {self.number} of {self.count}; choose 0..{self.count - 1}")

    def holds(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which of these keys are in the share."""
        return keys % np.uint64(self.count) == np.uint64(self.number)


class Snapshot(Protocol):
    """One committed version: it never changes, and threads may share it."""

    version: int
    """Number of the version, which grows with every commit."""

    def __len__(self) -> int:
        """Number of records, which are windows of passages."""

    @property
    def passages(self) -> int:
        """Number of passages, that is of distinct ids."""

    @property
    def documents(self) -> int:
        """Number of documents; passages that were cut from one document count once."""

    def lexical(
        self, query: str, k: int, where: Where | None = None, rows: Rows | None = None
    ) -> Ranking:
        """The `k` best rows by BM25 over title and text; the query is words, never a language.

        `rows` are the only ones to look at; their scores are those among all.
        """

    def dense(
        self,
        vector: npt.NDArray[np.float32],
        k: int,
        where: Where | None = None,
        rows: Rows | None = None,
    ) -> Ranking:
        """The `k` rows whose vectors have the largest inner product with `vector[V]`, of `rows` if given."""

    def vectors(self, rows: Rows) -> npt.NDArray[np.float32]:
        """`[R,V]` the vectors of these rows, in their order; zeros where there is none."""

    def locate(self, ids: Sequence[str]) -> Rows:
        """Rows of all windows of each id, in the order given; an unknown id is a `MissingRecord`.

        Ids of another share are passed over.
        """

    def mine(self, rows: Rows) -> Rows:
        """The rows that this reader answers for, in order: all of them, unless it reads a share."""

    def digests(self, ids: Sequence[str]) -> list[int | None]:
        """The digest that each id was stored with, or None where it is not there."""

    def rows(self) -> Rows:
        """All rows, in the order in which they are stored."""

    def state_keys(self, rows: Rows) -> npt.NDArray[np.int64]:
        """A number for each row that stands for its states, and no others, in all snapshots of a store."""

    def leads(self, rows: Rows) -> npt.NDArray[np.int64]:
        """How many tokens of each row come before those of its text; -1 where nobody noted it."""

    def states(self, rows: Rows) -> Encoded:
        """The codec's bytes of these rows, in their order."""

    def texts(self, rows: Rows) -> list[Excerpt]:
        """Text, title, metadata and token offsets of these rows, in their order."""

    def scan(self, where: Where | None = None) -> Iterator[Excerpt]:
        """Every record that passes the filter in turn, in bounded memory."""


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A part that is written but not yet visible; plain values, which a worker can send to the writer."""

    part: str
    ids: tuple[str, ...]
    content: Any
    """Data that the store needs to commit the part; its form is the store's own."""


class Store(Protocol):
    """Commits are atomic and durable. Many stores may read one location; one at a time may write to it."""

    snapshot: Snapshot
    """The version that this store last wrote or was refreshed to."""

    @classmethod
    def exists(cls, uri: str | Path) -> bool:
        """Whether `open` would find a store; what a killed `create` left is none."""

    @classmethod
    def create(cls, uri: str | Path, *, token_bytes: int, width: int | None = None) -> Store:
        """A new, empty store, open for writing, for states and dense vectors of these widths."""

    @classmethod
    def open(cls, uri: str | Path, *, write: bool = False, share: Share | None = None) -> Store:
        """An existing store; a second writer gets `IndexBusy`, readers are always welcome.

        `share` is for readers that divide the passages among them.
        """

    def refresh(self) -> Snapshot:
        """Move to the newest version and return it."""

    def stage(self, records: Sequence[Record], *, part: str) -> Staged:
        """Write records without making them visible, which needs no right to write.

        All windows of an id come together, in order.
        """

    def commit(self, staged: Sequence[Staged]) -> int:
        """Make staged parts visible and mark them as done; an id that is there already is replaced.

        In one commit unless an id is in several parts. Returns how many ids were replaced.
        """

    def append(self, records: Sequence[Record], *, part: str) -> int:
        """Stage a part and commit it, if this store may write."""
        return self.commit([self.stage(records, part=part)])

    def relabel(self, passages: Sequence[Passage]) -> None:
        """Give passages that are there other metadata, in one commit; text, title and states stay."""

    def delete(self, ids: Sequence[str]) -> int:
        """Remove all windows of these ids; unknown ones are passed over. Returns how many went."""

    def optimise(self) -> None:
        """Bring the search indexes up to date; until then new records are found by a slower scan."""
        return

    def compact(self, *, older_than: timedelta = KEEP) -> None:
        """Reclaim what deleted and replaced records hold, and versions superseded for `older_than`."""
        return

    def superseded(self) -> int:
        """Bytes that only versions before the newest need."""
        return 0

    def tidy(self, *, older_than: timedelta = KEEP) -> None:
        """Remove versions superseded for `older_than`, and what only they refer to."""
        return

    def close(self) -> None:
        """Release the right to write, so that another store can take it."""


def ranking(rows: Rows, scores: Scores, k: int) -> Ranking:
    """The `k` best of these, in the order that `Ranking` promises."""
    if 0 < k < len(rows):
        # Rows that tie with the k-th score stay in, so that their order decides and not chance.
        best = scores >= np.partition(scores, len(rows) - k)[len(rows) - k]
        rows, scores = rows[best], scores[best]
    order = np.lexsort((rows, -scores))[: max(k, 0)]
    return Ranking(rows[order].astype(np.int64), scores[order].astype(np.float32))


def check_vector(vector: npt.NDArray[np.float32], width: int | None) -> None:
    """Raise `InputError` for a query vector that the store's vectors cannot be compared with."""
    if width is None:
        raise InputError(
            "this index holds no dense vectors; use lexical candidates, or index with a dense encoder"
        )
    if vector.shape != (width,):
        raise InputError(f"the query vector is {list(vector.shape)}; this index expects [{width}]")


def missing(ids: Sequence[str]) -> MissingRecord:
    """The error for ids that are not there, which names the first few."""
    shown = ", ".join(f"{i!r:.80}" for i in ids[:3]) + f" and {len(ids) - 3} more" * (len(ids) > 3)
    return MissingRecord(f"the index has no passage {shown}; check the ids or add the passages")
