"""Scaled dot-product attention."""

from dataclasses import dataclass, replace
from typing import Literal

from decoupled.model.parts.attention.base import Attention, DotProduct


@dataclass(frozen=True, kw_only=True)
class SelfAttention(DotProduct):
    """Scaled dot-product attention, rotary or not, over everything or within a window."""

    window: int | None = None
    """How many positions a token sees to each side; None is all of them."""
    rotary: float | None = None
    """Base of the rotary angles; None is no rotation."""
    kind: Literal["self"] = "self"

    # Neither window nor angles have parameters, so layers of one slot may differ in them.
    def shape(self) -> Attention:
        return replace(self, window=None, rotary=None)
