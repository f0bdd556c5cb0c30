"""Attention most of whose heads follow fixed patterns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from decoupled.errors import SpecError

Pattern = Literal["current", "previous", "next", "left", "right", "end", "start", "last"]
"""Where a fixed head looks; `nn/patterns.py` says with which weights."""


@dataclass(frozen=True, kw_only=True)
class FixedPatterns:
    """Attention whose first heads look where a pattern says, without query and key; the others learn."""

    heads: int
    """All of them, fixed and learned."""
    head_width: int
    patterns: tuple[Pattern, ...]
    empty: Literal["clamp", "zero"] = "clamp"
    """A pattern that finds no token takes the nearest one, or gives nothing."""
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
        """Heads that have queries and keys."""
        return self.heads - len(self.patterns)
