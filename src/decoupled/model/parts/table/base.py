"""Kinds of token tables: whole, low-rank, or narrower from band to band."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar, Literal

from decoupled.errors import SpecError
from decoupled.model.parts.linear import WHOLE, Tensors, TensorSpec

TOKENS = "embedding.tokens"
"""What the names of its tensors begin with."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """Consecutive ids: where their rows are, how wide, and the matrix that widens them, if any."""

    ids: int
    width: int
    rows: str
    widen: str | None = None


class Table(ABC):
    """How rows of vectors are held for the ids of a vocabulary."""

    placed: ClassVar[bool] = False
    """Do its vectors depend on the position too?"""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Its tag: in JSON, and in errors that name it."""

    @abstractmethod
    def bands(self, vocab: int, width: int) -> tuple[Band, ...]:
        """Its parts, in the order of the ids. Tensors outside of their rows are for all tokens."""

    def keep(self, order: Sequence[int]) -> Table:
        """The same for the given ids, in the given order."""
        return self

    def check(self, vocab: int, width: int) -> None:
        """Raise where it does not fit the vocabulary, or a width of its vectors."""
        return

    def tensors(self, vocab: int, width: int, bits: int | None) -> Tensors:
        """Rows, as floats or int8 codes with a scale each, and the matrices that widen them."""
        found: Tensors = {}
        for band in self.bands(vocab, width):
            shape = (band.ids, band.width)
            if bits is None:
                found[f"{band.rows}.weight"] = TensorSpec(shape)
            else:
                found[f"{band.rows}.codes"] = TensorSpec(shape, "int8")
                found[f"{band.rows}.scale_V1"] = TensorSpec((band.ids, 1))
            if band.widen is not None:
                found |= WHOLE.tensors(band.widen, band.width, width, bias=False)
        return found

    def macs(self, vocab: int, width: int) -> int:
        """Multiply-adds of one token."""
        return sum(b.width * width for b in self.bands(vocab, width) if b.widen is not None)


@dataclass(frozen=True, kw_only=True)
class WholeTable(Table):
    """A row of the full width per token: what a spec without a table means."""

    kind: Literal["whole"] = "whole"

    def bands(self, vocab: int, width: int) -> tuple[Band, ...]:
        return (Band(ids=vocab, width=width, rows=TOKENS),)


@dataclass(frozen=True, kw_only=True)
class Factorised(Table):
    """A low-rank token table; positions and types stay as wide as they are."""

    rank: int
    kind: Literal["factorised"] = "factorised"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise SpecError(f"a token table of rank {self.rank}; choose 1 or more")

    def bands(self, vocab: int, width: int) -> tuple[Band, ...]:
        rows, widen = f"{TOKENS}.table", f"{TOKENS}.widen"
        return (Band(ids=vocab, width=self.rank, rows=rows, widen=widen),)


@dataclass(frozen=True, kw_only=True)
class Banded(Table):
    """Rows that get narrower from band to band, each widened by its own; ids in order of frequency."""

    sizes: tuple[int, ...]
    """Tokens of each band, the most frequent first."""
    widths: tuple[int, ...]
    kind: Literal["banded"] = "banded"

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.widths) or not self.sizes or min(self.sizes) < 1:
            raise SpecError(
                f"bands of {self.sizes} tokens with widths {self.widths}; give a width for each band, and "
                "at least a token to each"
            )

    def bands(self, vocab: int, width: int) -> tuple[Band, ...]:
        return tuple(
            Band(ids=ids, width=narrow, rows=f"{TOKENS}.tables.{n}", widen=f"{TOKENS}.widen.{n}")
            for n, (ids, narrow) in enumerate(zip(self.sizes, self.widths, strict=True))
        )

    def keep(self, order: Sequence[int]) -> Banded:
        edges = list(accumulate(self.sizes))
        places = [bisect_right(edges, id) for id in order]
        if places != sorted(places):
            raise SpecError(
                "the new order mixes tokens of different bands; keep the order of the bands"
            )
        left = [(places.count(n), width) for n, width in enumerate(self.widths)]
        sizes, widths = zip(*(band for band in left if band[0]), strict=True)
        return replace(self, sizes=sizes, widths=widths)

    def check(self, vocab: int, width: int) -> None:
        if sum(self.sizes) != vocab:
            raise SpecError(
                f"bands of {self.sizes} tokens for a vocabulary of {vocab}; they must add up to it"
            )
