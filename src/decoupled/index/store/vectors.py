"""Dense vectors in memory, a byte for each number: a quarter of the room, and faster to read than floats.

Shapes: R records, V width of a vector.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decoupled.index.store.base import Rows

Floats = npt.NDArray[np.float32]

_BLOCK = 1024
"""Records that are widened at a time: within a core's cache, where that costs less than reading floats."""


@dataclass(frozen=True, eq=False)
class Vectors:
    """The vectors of some rows. A code is off by half a step, an inner product of unit vectors by 0.002."""

    rows: Rows
    codes: npt.NDArray[np.int8]
    """Quantised vectors, `[R,V]`."""
    steps: Floats
    """`[R]`: a vector is its codes times its step."""

    @classmethod
    def of(cls, batches: Iterable[tuple[Rows, npt.NDArray[np.generic]]], width: int) -> Vectors:
        """Quantise rows and their `[R,V]` vectors batch by batch, so that never all are floats in memory."""
        rows, codes = [np.zeros(0, np.int64)], [np.zeros((0, width), np.int8)]
        steps = [np.zeros(0, np.float32)]
        for some, values in batches:
            x_RV = np.asarray(values, np.float32)
            # The largest number of a vector gets code ±127; zeros must not be divided by zero.
            step_R = np.maximum(np.abs(x_RV).max(1) / np.float32(127), np.float32(1e-30))
            rows.append(some)
            codes.append(np.rint(x_RV / step_R[:, None]).astype(np.int8))
            steps.append(step_R)
        return cls(np.concatenate(rows), np.concatenate(codes), np.concatenate(steps))

    def at(self, rows: Rows) -> Vectors:
        """The vectors of these rows, less rows without one; `rows` must be in ascending order."""
        at = np.searchsorted(self.rows, rows)
        inside = at < len(self.rows)
        which = at[inside][self.rows[at[inside]] == rows[inside]]
        return Vectors(self.rows[which], self.codes[which], self.steps[which])

    def dot(self, vector: Floats) -> Floats:
        """`[R]` inner products with `vector[V]`."""
        products = np.empty(len(self.rows), np.float32)
        block_BV = np.empty((_BLOCK, len(vector)), np.float32)
        for start in range(0, len(products), _BLOCK):
            codes = self.codes[start : start + _BLOCK]
            np.copyto(block_BV[: len(codes)], codes)
            np.dot(block_BV[: len(codes)], vector, out=products[start : start + _BLOCK])
        return products * self.steps
