"""Attention that looks at relative positions (DeBERTa)."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from decoupled.model.jsonable import LATER
from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.linear import LinearSpec, Tensors, TensorSpec
from decoupled.model.parts.norm import NormSpec
from decoupled.model.parts.part import Matrix


@dataclass(frozen=True, kw_only=True)
class Disentangled(Attention):
    """DeBERTa's attention: content scores plus content-position and position-content scores."""

    relative: ClassVar[bool] = True

    terms: tuple[Literal["c2p", "p2c"], ...]
    buckets: int
    """Distances to each side; the relative table has twice as many rows in use."""
    max_distance: int
    """Distance at which the logarithmic buckets end; 0 means linear buckets."""
    shared: bool = True
    """Relative positions pass through the content's own query and key projections."""
    kind: Literal["disentangled"] = "disentangled"

    @property
    def scale(self) -> float:
        # DeBERTa, eq. 4: 1/sqrt(3d) with both position terms, so the variance stays as with one term.
        return 1 / math.sqrt(self.head_width * (1 + len(self.terms)))

    def matrices(self, width: int) -> dict[str, Matrix]:
        table = Matrix(inputs=width, outputs=self.inner, reads="table")
        matrices = self.dot_product(width)
        if not self.shared and "c2p" in self.terms:
            matrices["attention.relative_key"] = table
        if not self.shared and "p2c" in self.terms:
            matrices["attention.relative_query"] = table
        return matrices

    def mixing(self, linear: LinearSpec, width: int, rows: int, tokens: int, table: int) -> int:
        used = min(table, 2 * self.buckets)
        # c2p multiplies each row, p2c each token, by every row of the table.
        each, project = {"c2p": rows, "p2c": tokens}, linear.macs(width, self.inner)
        positions = sum(used * (project + each[term] * self.inner) for term in self.terms)
        return 2 * rows * tokens * self.inner + positions


def log_bucket(distance: Any, buckets: int, max_distance: int, xp: Any) -> Any:
    """DeBERTa's buckets of distances in `xp`, numpy or torch: exact up to half of them, then logarithmic."""
    middle = buckets // 2
    # Near distances get a harmless value: the logarithm of 0 would be -inf.
    far = xp.where(abs(distance) < middle, max(middle - 1, 1), abs(distance))
    scale = xp.log(xp.asarray((max_distance - 1) / middle, dtype=xp.float32))
    part = xp.log(xp.asarray(far, dtype=xp.float32) / middle)
    steps = xp.asarray(xp.ceil(part / scale * (middle - 1)), dtype=xp.int64) + middle
    return xp.where(far <= middle, distance, steps * xp.sign(distance))


@dataclass(frozen=True, kw_only=True)
class RelativeSpec:
    """A table of relative positions, shared by all layers: DeBERTa's, or one of numbers for each head."""

    rows: int
    norm: NormSpec | None = None
    width: int | None = field(default=None, metadata=LATER)
    """Columns; None is the width of the encoder."""

    def tensors(self, width: int) -> Tensors:
        """Its table and norm, by name."""
        tensors = {"stack.relative.table.weight": TensorSpec((self.rows, self.width or width))}
        return tensors | (self.norm.tensors("stack.relative.norm", width) if self.norm else {})
