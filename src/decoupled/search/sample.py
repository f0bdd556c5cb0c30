"""Some passages of an index, which tell where its passages stand in a crowd."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from decoupled.index.store.base import Rows, Snapshot
from decoupled.model.scoring import Floats

SIZE = 2000
"""Passages of a sample, at equal distances."""
NEAREST = 20
"""Passages of the sample by which a place is judged."""


def directions(vectors: npt.NDArray[np.float32]) -> Floats:
    """Of length 1; zeros stay."""
    exact = vectors.astype(np.float64)
    return exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-9)


@dataclass(frozen=True, eq=False)
class Sample:
    """Read of one version of an index, and only as far as it is asked for."""

    snapshot: Snapshot

    @cached_property
    def rows(self) -> Rows:
        """Where they are."""
        every = self.snapshot.rows()
        return every[:: -(-len(every) // SIZE)] if len(every) else every

    @cached_property
    def _places(self) -> Floats:
        return directions(self.snapshot.vectors(self.rows))

    def crowding(self, rows: Rows) -> Floats:
        """The mean cosine of each row with those of the sample that are nearest to it, itself aside."""
        cosines = directions(self.snapshot.vectors(rows)) @ self._places.T
        cosines[rows[:, None] == self.rows] = -1.0
        nearest = min(NEAREST, cosines.shape[1])
        return np.partition(cosines, -nearest, axis=1)[:, -nearest:].mean(1)


class Samples:
    """The sample of the newest version that was asked for."""

    def __init__(self) -> None:
        self._last: Sample | None = None

    def of(self, snapshot: Snapshot) -> Sample:
        """That of this version."""
        last = self._last
        if last is None or last.snapshot.version != snapshot.version:
            self._last = last = Sample(snapshot)
        return last
