"""Smaller forms of the parts of an encoder: thin or coded matrices, narrow token tables, fixed heads.

`spec.py` names them where they stand in place of the ordinary parts; `shrink/` puts them there.
"""

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


@dataclass(frozen=True, kw_only=True)
class LinearSpec:
    """How the matrices of a block are held; by default whole and in floating point."""

    rank: int | None = None
    """Two thin factors of this rank instead of one matrix."""
    bits: Literal[8, 4] | None = None
    """Weights as integer codes with a scale."""
    group: int = 0
    """Columns that share a scale; 0 is the whole row."""
    inputs: Literal["float", "dynamic", "static"] = "float"
    """What meets the codes: floats, or int8 with a scale per token or one scale fixed beforehand."""

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise SpecError(f"maps of rank {self.rank}; choose 1 or more")
        if self.inputs != "float" and (self.group or self.bits is None):
            raise SpecError(
                f"{self.inputs} integer inputs with bits={self.bits} and group={self.group}; they need "
                "codes with one scale per row: choose group=0, or inputs=float"
            )


@dataclass(frozen=True, kw_only=True)
class Factorised:
    """A narrow token table and a map to the model's width; positions and types stay as wide as they are."""

    rank: int
    kind: Literal["factorised"] = "factorised"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise SpecError(f"a token table of rank {self.rank}; choose 1 or more")


@dataclass(frozen=True, kw_only=True)
class Banded:
    """Token tables that get narrower from band to band, each with its own map; ids in order of frequency."""

    sizes: tuple[int, ...]
    """Tokens of each band, the most frequent first."""
    widths: tuple[int, ...]
    kind: Literal["banded"] = "banded"

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.widths) or not self.sizes or min(self.sizes) < 1:
            raise SpecError(
                f"bands of {self.sizes} tokens with widths {self.widths}; give a width for each band, and "
                "at least a token to each"
            )


TableSpec = Factorised | Banded
