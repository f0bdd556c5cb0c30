"""How the token table is held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from decoupled.errors import SpecError


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
