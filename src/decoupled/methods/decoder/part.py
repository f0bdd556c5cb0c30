"""The attention of a decoder: to what came before, and to the other text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from decoupled.model.parts.attention.base import DotProduct


@dataclass(frozen=True, kw_only=True)
class Causal(DotProduct):
    """Scaled dot-product attention of each token to itself and those before it: what a decoder has.

    The kernels score every token and then leave the later ones out, so all of them count.
    """

    rotary: float | None = None
    """Base of the rotary angles; None is no rotation."""
    kind: Literal["causal"] = "causal"

    def shape(self) -> Causal:
        return replace(self, rotary=None)


@dataclass(frozen=True, kw_only=True)
class Cross(DotProduct):
    """Rows of one text look at the tokens of the other: query and passage, or a decoder and its source."""

    below_split: ClassVar[bool] = False
    reads_source: ClassVar[bool] = True

    kind: Literal["cross"] = "cross"
