"""Attention most of whose heads follow fixed patterns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from decoupled.errors import SpecError
from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.parts.part import Matrix

Pattern = Literal["current", "previous", "next", "left", "right", "end", "start", "last"]
"""Where a fixed head looks; `module.py` beside this file says with which weights."""
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
Empty = Literal["clamp", "zero"]
"""Whether a pattern that finds no token takes the nearest one, or gives nothing."""


@dataclass(frozen=True, kw_only=True)
class FixedPatterns(Attention):
    """Attention whose first heads look where a pattern says, without query and key; the others learn."""

    alike: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    patterns: tuple[Pattern, ...]
    empty: Empty = "clamp"
    bias: bool = True
    window: int | None = None
    rotary: float | None = None
    kind: Literal["fixed"] = "fixed"

    def __post_init__(self) -> None:
        if self.learned < 0:
            raise SpecError(
                f"{len(self.patterns)} patterns for {self.heads} heads; give at most one for each"
            )

    @property
    def learned(self) -> int:
        """The number of heads that have queries and keys."""
        return self.heads - len(self.patterns)

    def matrices(self, width: int) -> dict[str, Matrix]:
        return self.dot_product(width, bias=self.bias, scored=self.learned)

    def mixing(self, linear: LinearSpec, width: int, rows: int, tokens: int, table: int) -> int:
        # Fixed heads mix by shifts and sums, which do not count.
        return 2 * rows * tokens * self.learned * self.head_width

    def shape(self) -> Attention:
        return replace(self, window=None, rotary=None)

    def keep(self, units: Sequence[int]) -> FixedPatterns:
        patterns = tuple(self.patterns[u] for u in units if u < len(self.patterns))
        return replace(self, heads=len(units), patterns=patterns)
