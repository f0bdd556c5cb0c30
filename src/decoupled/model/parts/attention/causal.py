"""Attention that looks back only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.parts.part import Matrix


@dataclass(frozen=True, kw_only=True)
class Causal(Attention):
    """Scaled dot-product attention of each token to itself and those before it: what a decoder has."""

    bias: bool = True
    rotary: float | None = None
    """Base of the rotary angles; None is no rotation."""
    kind: Literal["causal"] = "causal"

    @property
    def exact_positions(self) -> bool:
        return self.rotary is not None

    def matrices(self, width: int) -> dict[str, Matrix]:
        return self.dot_product(width, bias=self.bias)

    def mixing(self, linear: LinearSpec, width: int, rows: int, tokens: int, table: int) -> int:
        # What is computed: the kernels score every token and then leave the later ones out.
        return 2 * rows * tokens * self.inner

    def shape(self) -> Attention:
        return replace(self, rotary=None)
