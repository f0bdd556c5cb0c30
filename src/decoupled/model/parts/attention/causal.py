"""Attention that looks back only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from decoupled.model.parts.attention.base import DotProduct


@dataclass(frozen=True, kw_only=True)
class Causal(DotProduct):
    """Scaled dot-product attention of each token to itself and those before it: what a decoder has.

    The kernels score every token and then leave the later ones out, so all of them count.
    """

    rotary: float | None = None
    """Base of the rotary angles; None is no rotation."""
    kind: Literal["causal"] = "causal"

    @property
    def exact_positions(self) -> bool:
        return self.rotary is not None

    def shape(self) -> Causal:
        return replace(self, rotary=None)
