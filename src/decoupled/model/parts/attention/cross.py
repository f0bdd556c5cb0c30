"""Attention to the other text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.parts.part import Matrix


@dataclass(frozen=True, kw_only=True)
class Cross(Attention):
    """Rows of one text look at the tokens of the other: query and passage, or a decoder and its source."""

    below_split: ClassVar[bool] = False
    reads_source: ClassVar[bool] = True

    bias: bool = True
    kind: Literal["cross"] = "cross"

    def matrices(self, width: int) -> dict[str, Matrix]:
        return self.dot_product(width, bias=self.bias)

    def mixing(self, linear: LinearSpec, width: int, rows: int, tokens: int, table: int) -> int:
        return 2 * rows * tokens * self.inner
