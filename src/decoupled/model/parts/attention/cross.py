"""Attention to the other text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from decoupled.model.parts.attention.base import DotProduct


@dataclass(frozen=True, kw_only=True)
class Cross(DotProduct):
    """Rows of one text look at the tokens of the other: query and passage, or a decoder and its source."""

    below_split: ClassVar[bool] = False
    reads_source: ClassVar[bool] = True

    kind: Literal["cross"] = "cross"
