"""How the matrices of a block are held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from decoupled.errors import SpecError


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
