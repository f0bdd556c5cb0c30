"""Token tables: what every kind answers, and the whole one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from decoupled.model.parts.linear import WHOLE, Tensors, TensorSpec

TOKENS = "embedding.tokens"
"""Prefix of the names of the tensors of the token table."""


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
    """Whether its vectors depend on the position too."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Its tag: in JSON, and in errors that name it."""

    @abstractmethod
    def bands(self, vocab: int, width: int) -> tuple[Band, ...]:
        """Its parts, in the order of the ids. Tensors outside of their rows are for all tokens."""

    def keep(self, order: Sequence[int]) -> Table:
        """The table for the given ids, in the given order."""
        return self

    def check(self, vocab: int, width: int) -> None:
        """Raise where it does not fit the vocabulary, or a width of its vectors."""
        return

    def tensors(self, vocab: int, width: int, bits: int | None) -> Tensors:
        """Rows, as floats or int8 codes with a scale each, and the matrices that widen them."""
        tensors: Tensors = {}
        for band in self.bands(vocab, width):
            shape = (band.ids, band.width)
            if bits is None:
                tensors[f"{band.rows}.weight"] = TensorSpec(shape)
            else:
                tensors[f"{band.rows}.codes"] = TensorSpec(shape, "int8")
                tensors[f"{band.rows}.scale_V1"] = TensorSpec((band.ids, 1))
            if band.widen is not None:
                tensors |= WHOLE.tensors(band.widen, band.width, width, bias=False)
        return tensors

    def macs(self, vocab: int, width: int) -> int:
        """Multiply-adds of one token."""
        return sum(b.width * width for b in self.bands(vocab, width) if b.widen is not None)


@dataclass(frozen=True, kw_only=True)
class WholeTable(Table):
    """A row of the full width per token: what a spec without a table means."""

    kind: Literal["whole"] = "whole"

    def bands(self, vocab: int, width: int) -> tuple[Band, ...]:
        return (Band(ids=vocab, width=width, rows=TOKENS),)
