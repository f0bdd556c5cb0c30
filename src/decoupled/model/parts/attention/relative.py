"""Attention to relative positions: a bias for each bucket of distances (MPNet), and segments (XLNet)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from decoupled.model.parts.attention.base import Attention, DotProduct
from decoupled.model.parts.linear import LinearSpec, Tensors, TensorSpec
from decoupled.model.parts.part import Matrix


@dataclass(frozen=True, kw_only=True)
class Bucketed(DotProduct):
    """Dot products with a bias for each head and bucket of distances, of one table for all layers (T5)."""

    alike: ClassVar[bool] = False
    relative: ClassVar[bool] = True

    max_distance: int = 128
    """The distance from which on all are in one bucket, to each side."""
    kind: Literal["bucketed"] = "bucketed"


@dataclass(frozen=True, kw_only=True)
class Segmented(Attention):
    """Scores of content, of the distance through a map of its sinusoid, and of equal segments (XLNet)."""

    alike: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    clamp: int = 0
    """Greater distances count as this one; 0 has no bound."""
    kind: Literal["segmented"] = "segmented"

    def matrices(self, width: int) -> dict[str, Matrix]:
        distances = Matrix(inputs=width, outputs=self.inner, bias=False, reads="table")
        return {**self.dot_product(width, bias=False), "attention.distance": distances}

    def others(self, width: int) -> Tensors:
        each, names = (self.heads, self.head_width), ("content", "place", "segment")
        tensors = {f"attention.{name}": TensorSpec(each) for name in names}
        return {**tensors, "attention.segments": TensorSpec((2, *each))}

    def mixing(self, linear: LinearSpec, width: int, rows: int, tokens: int, table: int) -> int:
        # A vector of each distance to either side, and each row by all of them and by two segments.
        steps = 2 * tokens - 1
        return rows * (2 * tokens + steps + 2) * self.inner + steps * linear.macs(width, self.inner)

    def shape(self) -> Attention:
        return replace(self, clamp=0)
