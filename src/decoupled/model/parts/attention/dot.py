"""Scaled dot-product attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class SelfAttention:
    """Scaled dot-product attention, rotary or not, over everything or within a window."""

    heads: int
    head_width: int
    bias: bool = True
    window: int | None = None
    """How many positions a token sees to each side; None is all of them."""
    rotary: float | None = None
    """Base of the rotary angles; None is no rotation."""
    kind: Literal["self"] = "self"
