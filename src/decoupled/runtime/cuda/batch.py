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

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """A batch of pairs. The tensors say which rows are real; the integers are sizes that hold them."""

    count: int
    query: int
    """Query rows of each pair: its own `asks` rows and then padding; 0 where texts are read alone."""
    tokens: int
    longest: int
    """Upper bound of the rows of a passage."""
    asker: Tensor
    """`[P]` int64: the number of each pair's query."""
    asks: Tensor
    """`[P]` int64: real rows of that query."""
    source: Tensor
    """`[P]` int64: first row of each passage in the block that is decoded."""
    start: Tensor
    """`[P]` int64, ascending: first row of each passage among the passage rows."""
    length: Tensor
    """`[P]` int64: rows of each passage, 0 for a pair that is only padding."""

    def owner_N(self) -> Tensor:
        """The pair of each passage row; rows past the last passage get some pair."""
        row_N = torch.arange(self.tokens, device=self.start.device)
        # The last start at or before a row is that of its passage.
        return (torch.searchsorted(self.start, row_N, right=True) - 1).clamp(min=0)

    def places(self, begin: int) -> Tensor:
        """The position of each passage row where passages begin at `begin`."""
        if self.count > 1:
            return self.place_N(self.owner_N()) + begin
        # One text needs no lookup of owners, and this runs for every query that waits.
        row_N = torch.arange(begin, begin + self.tokens, device=self.length.device)
        return torch.minimum(row_N, (self.length + begin - 1).clamp(min=begin))

    def question(self) -> Pairs:
        """The query of the first pair, described as a text that is read alone."""
        none = self.start[:1]
        numbers = none, none, none, none, self.asks[:1]
        return pairs_of(numbers, query=0, tokens=self.query, longest=self.query)

    def place_N(self, owner_N: Tensor) -> Tensor:
        """The place of each passage row in its passage, 0 for the first; past its end, the last."""
        place_N = torch.arange(self.tokens, device=self.start.device) - self.start[owner_N]
        return torch.minimum(place_N, self.length[owner_N] - 1).clamp(min=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Joined:
    """Rows of both sides. `whole` is the buffer that holds both, query rows first, where there is one."""

    query: Tensor
    """`[P·rows, C]` query rows, or `[G·rows, C]` where all pairs of a query share them."""
    passage: Tensor | None
    pair_rows: int
    """Query rows of each pair."""
    shared: bool = False
    whole: Tensor | None = None

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
        # Every pair's first row is a fixed number of rows after that of the pair before.
        return self.query[:: self.pair_rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunk:
    """Pairs `first..last-1` of a call, as `Pairs` describes them."""

    first: int
    last: int
    tokens: int
    longest: int
    asker: Ints
    """`[P]`: the number of each pair's query, counted within the chunk."""
    asks: Ints
    source: Ints
    length: Ints
    queries: Ints
    """The queries of these pairs, in the order of their numbers."""

    def write(self, numbers: Ints, room: Room, *, sent: bool = False) -> None:
        """The tensors of `Pairs`, `[5,P]`; pairs for which there is only room have no rows.

        Passages that are `sent` with the chunk begin where their rows do.
        """
        count = self.last - self.first
        # A softmax over no keys would be NaN, so padding pairs see one query row.
        numbers[:, count:] = np.array([0, 1, 0, room.tokens, 0])[:, None]
        own = numbers[:, :count]
        own[0], own[1], own[4] = self.asker, self.asks, self.length
        own[3, 0] = 0
        # Starts are the cumulative lengths of the passages before.
        self.length[:-1].cumsum(out=own[3, 1:])
        own[2] = own[3] if sent else self.source

    def in_turn(self, room: Room) -> Ints:
        """Indices that bring the first rows of all pairs and the passage rows into the order of the pairs."""
        count = self.last - self.first
        order = np.empty(count + self.tokens, np.int64)
        # In the output each pair has one first row and then its tokens.
        begin = np.cumsum(self.length + 1) - (self.length + 1)
        is_token = np.ones(len(order), bool)
        is_token[begin] = False
        order[begin] = np.arange(count)
        order[is_token] = room.pairs + np.arange(self.tokens)
        return order


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
    ends = (length + asks).cumsum()
    first = 0
    while first < len(length):
        before, last = int(ends[first - 1]) if first else 0, len(length)
        if ends[-1] > before + rows:
            # At least one pair, even where its rows alone exceed the limit.
            last = max(first + 1, int(ends.searchsorted(before + rows, side="right")))
        own = slice(first, last)
        queries, number = _numbered(asker[own])
        yield Chunk(
            first=first,
            last=last,
            tokens=int(length[own].sum()),
            longest=int(length[own].max()),
            asker=number,
            asks=asks[own],
            source=source[own],
            length=length[own],
            queries=queries,
        )
        first = last


def _numbered(asker: Ints) -> tuple[Ints, Ints]:
    """The distinct queries of these pairs, and the number of each pair's query among them."""
    if not asker.any():  # as it is for one query, which waits
        return asker[:1], asker
    queries, number = np.unique(asker, return_inverse=True)
    return queries, number


def pairs_of(
    numbers: Tensor | tuple[Tensor, ...], *, query: int, tokens: int, longest: int
) -> Pairs:
    """The pairs that `Chunk.write` describes, on the device where it lies."""
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
