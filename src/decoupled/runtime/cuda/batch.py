"""Which rows belong to which pair: query rows of all pairs first, then passage rows of all pairs.

Matrix products do not mind the order of rows, and attention looks a pair's rows up. So query rows, passage
rows and first rows are plain slices, nothing is padded, and a query that no layer has changed yet is held
once for all its pairs. Shapes: P pairs, G queries, Q query rows of each, N passage rows together, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoupled.runtime.cuda.fp8 import Rounded

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """A batch of pairs. The tensors say what is real; the numbers are the room there is for it."""

    count: int
    query: int
    """Query rows of each pair, its `asks` and then room; 0 where texts are read alone."""
    tokens: int
    longest: int
    """No passage has more rows."""
    asker: Tensor
    """`[P]` int64: the number of each pair's query."""
    asks: Tensor
    """`[P]` int64: rows of that query."""
    source: Tensor
    """`[P]` int64: where each passage begins in what is decoded."""
    start: Tensor
    """`[P]` int64, ascending: where each passage begins among the passage rows."""
    length: Tensor
    """`[P]` int64: rows of each passage, 0 for a pair that is only room."""

    def owner_N(self) -> Tensor:
        """The pair of each passage row; rows past the last passage get some pair."""
        row_N = torch.arange(self.tokens, device=self.start.device)
        return (torch.searchsorted(self.start, row_N, right=True) - 1).clamp(min=0)

    def place_N(self, owner_N: Tensor) -> Tensor:
        """The place of each passage row in its passage, 0 for the first; past its end, the last."""
        place_N = torch.arange(self.tokens, device=self.start.device) - self.start[owner_N]
        return torch.minimum(place_N, self.length[owner_N] - 1).clamp(min=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Joined:
    """Rows of both sides. `whole` is the buffer that holds both, query rows first, where there is one."""

    query: Tensor
    """`[P·rows, C]`, or `[G·rows, C]` where the pairs of a query share them."""
    passage: Tensor | None
    pair_rows: int
    """Query rows of each pair."""
    shared: bool = False
    whole: Tensor | None = None
    rounded: Rounded | None = None
    """`whole` in eight bits, where a product wants it so."""

    @classmethod
    def of(cls, whole: Tensor, rows: int, *, pair_rows: int, shared: bool = False) -> Joined:
        """The first `rows` of a buffer as query rows, the others as passage rows."""
        return cls(
            query=whole[:rows],
            passage=whole[rows:] if len(whole) > rows else None,
            pair_rows=pair_rows,
            shared=shared,
            whole=whole,
        )

    def first(self) -> Tensor:
        """First query rows: `[P,C]`, or `[G,C]` where they are shared."""
        return self.query[:: self.pair_rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunk:
    """Pairs `first..last-1` of a call, and their numbers as one array for one copy to the device."""

    first: int
    last: int
    tokens: int
    longest: int
    numbers: Ints
    """`[5,P]`: `asker`, counted within the chunk, `asks`, `source`, `start` and `length`."""
    queries: Ints
    """Those that the pairs ask, in the order of their numbers."""


@dataclass(frozen=True)
class Room:
    """Sizes of a batch: exact, or rounded up so that one graph serves many."""

    pairs: int
    queries: int
    query: int
    tokens: int
    longest: int
    graph: bool


def chunks(asker: Ints, asks: Ints, source: Ints, length: Ints, *, rows: int) -> Iterator[Chunk]:
    """Consecutive pairs with about `rows` rows together; at least one pair each."""
    ends = np.cumsum(length + asks)
    first = 0
    while first < len(length):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + rows, side="right")))
        own = length[first:last]
        start = np.cumsum(own) - own
        queries, number = _numbered(asker[first:last])
        numbers = np.stack([number, asks[first:last], source[first:last], start, own])
        yield Chunk(
            first=first,
            last=last,
            tokens=int(own.sum()),
            longest=int(own.max()),
            numbers=numbers.astype(np.int64),
            queries=queries,
        )
        first = last


def _numbered(asker: Ints) -> tuple[Ints, Ints]:
    """The queries that are asked, and the number of each pair's among them."""
    if not asker.any():  # as it is for one query, which waits
        return asker[:1], asker
    queries, number = np.unique(asker, return_inverse=True)
    return queries, number


def pairs_of(numbers: Tensor, *, query: int, tokens: int, longest: int) -> Pairs:
    """The pairs that `Chunk.numbers` describes, on the device where it lies."""
    asker, asks, source, start, length = numbers
    return Pairs(
        count=len(asker),
        query=query,
        tokens=tokens,
        longest=longest,
        asker=asker,
        asks=asks,
        source=source,
        start=start,
        length=length,
    )


def widened(numbers: Ints, count: int, room: Room) -> Ints:
    """The numbers of a chunk for a batch that has room for more pairs: those have no rows."""
    if room.pairs == count:
        return numbers
    wider = np.zeros((len(numbers), room.pairs), np.int64)
    wider[:, :count] = numbers
    wider[1, count:] = 1  # even these attend to something
    wider[3, count:] = room.tokens
    return wider
