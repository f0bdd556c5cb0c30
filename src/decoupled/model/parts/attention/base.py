"""What every kind of attention has."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import Self

from decoupled.model.parts.linear import LinearSpec
from decoupled.model.parts.part import Matrix, Part


@dataclass(frozen=True, kw_only=True)
class Attention(Part):
    """Heads of one width over all tokens. A kind adds its options, `kind` last."""

    exact: ClassVar[bool] = False
    """Whether it counts positions in another way than by rotary angles."""

    heads: int
    head_width: int

    @property
    def inner(self) -> int:
        """The number of columns of all heads together."""
        return self.heads * self.head_width

    @property
    def units(self) -> int:
        return self.heads

    @property
    def unit_width(self) -> int:
        return self.head_width

    @property
    def scale(self) -> float:
        """The factor of the products of queries and keys."""
        return 1 / math.sqrt(self.head_width)

    @property
    def exact_positions(self) -> bool:
        """Whether it computes with positions, which half precision would blur."""
        return self.exact or getattr(self, "rotary", None) is not None

    @property
    def cached_width(self) -> int:
        """Numbers of a token's keys and values together, where they can be stored; else 0."""
        return 0

    def keep(self, units: Sequence[int]) -> Self:
        return replace(self, heads=len(units)) if self.alike else super().keep(units)

    def dot_product(
        self, width: int, *, bias: bool = True, scored: int | None = None
    ) -> dict[str, Matrix]:
        """Query, key, value and output; `scored` heads, the last ones, have queries and keys."""
        scored = self.heads if scored is None else scored
        # Heads without scores (fixed patterns) come first and have values only.
        first, inner = self.heads - scored, scored * self.head_width
        score = Matrix(inputs=width, outputs=inner, bias=bias, first=first)
        scores = {"attention.query": score, "attention.key": replace(score, reads="tokens")}
        return {
            **(scores if scored else {}),
            "attention.value": Matrix(inputs=width, outputs=self.inner, bias=bias, reads="tokens"),
            "attention.out": Matrix(inputs=self.inner, outputs=width, bias=bias, units="inputs"),
        }


@dataclass(frozen=True, kw_only=True)
class DotProduct(Attention):
    """Each row takes of every token that it sees by the scaled product of query and key."""

    bias: bool = True

    def matrices(self, width: int) -> dict[str, Matrix]:
        return self.dot_product(width, bias=self.bias)

    def mixing(self, linear: LinearSpec, width: int, rows: int, tokens: int, table: int) -> int:
        # Products of queries with keys, and of weights with values: rows x tokens x columns each.
        return 2 * rows * tokens * self.inner
