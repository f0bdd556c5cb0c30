"""A token table whose rows get narrower from band to band."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from decoupled.errors import SpecError
from decoupled.model.parts.table.base import TOKENS, Band, Table


@dataclass(frozen=True, kw_only=True)
class Banded(Table):
    """Bands of ever narrower rows, each with its own widening matrix; ids are in order of frequency."""

    sizes: tuple[int, ...]
    """The number of tokens of each band, the most frequent first."""
    widths: tuple[int, ...]
    kind: Literal["banded"] = "banded"

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.widths) or not self.sizes or min(self.sizes) < 1:
            raise SpecError(
                f"bands of {self.sizes} tokens with widths {self.widths}; give a width for each band, and "
                "at least a token to each"
            )

    def bands(self, vocab: int, width: int) -> tuple[Band, ...]:
        return tuple(
            Band(ids=ids, width=narrow, rows=f"{TOKENS}.tables.{n}", widen=f"{TOKENS}.widen.{n}")
            for n, (ids, narrow) in enumerate(zip(self.sizes, self.widths, strict=True))
        )

    def keep(self, order: Sequence[int]) -> Banded:
        edges = list(accumulate(self.sizes))
        # The band of an id is the number of edges at or below it.
        places = [bisect_right(edges, id) for id in order]
        if places != sorted(places):
            raise SpecError(
                "the new order mixes tokens of different bands; keep the order of the bands"
            )
        # Bands that lost all of their tokens go with their matrices.
        left = [(places.count(n), width) for n, width in enumerate(self.widths)]
        sizes, widths = zip(*(band for band in left if band[0]), strict=True)
        return replace(self, sizes=sizes, widths=widths)

    def check(self, vocab: int, width: int) -> None:
        if sum(self.sizes) != vocab:
            raise SpecError(
                f"bands of {self.sizes} tokens for a vocabulary of {vocab}; they must add up to it"
            )
