"""A low-rank token table."""

from dataclasses import dataclass
from typing import Literal

from decoupled.errors import SpecError
from decoupled.model.parts.table.base import TOKENS, Band, Table


@dataclass(frozen=True, kw_only=True)
class Factorised(Table):
    """A low-rank token table; positions and types stay as wide as they are."""

    rank: int
    kind: Literal["factorised"] = "factorised"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise SpecError(f"a token table of rank {self.rank}; choose 1 or more")

    def bands(self, vocab: int, width: int) -> tuple[Band, ...]:
        rows, widen = f"{TOKENS}.table", f"{TOKENS}.widen"
        return (Band(ids=vocab, width=self.rank, rows=rows, widen=widen),)
