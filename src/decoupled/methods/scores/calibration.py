"""Reliability and calibration error: whether scores are the probabilities that they claim to be."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decoupled.errors import InputError
from decoupled.model.scoring import Floats

# As many as Guo et al. (2017) use.
BINS = 15


@dataclass(frozen=True, kw_only=True)
class Bin:
    """The scores between two bounds: what they claim on average, and how many of them were right."""

    low: float
    high: float
    count: int
    score: float
    right: float

    def to_json(self) -> dict[str, object]:
        """The bin as a JSON object, rounded to four digits."""
        return {name: round(value, 4) for name, value in vars(self).items()}


def reliability(
    scores: Sequence[float] | Floats, right: Sequence[bool] | Floats, bins: int = BINS
) -> list[Bin]:
    """Sort scores into bins of equal width; bins without any score are left out."""
    p, y = np.asarray(scores, np.float64), np.asarray(right, np.float64)
    if len(p) != len(y) or not len(p) or not ((p >= 0) & (p <= 1)).all():
        raise InputError(
            f"{len(p)} scores from 0 to 1 and {len(y)} judgments; give as many of both"
        )
    # A score of exactly 1 belongs to the last bin.
    place = np.minimum((p * bins).astype(np.int64), bins - 1)
    return [
        Bin(
            low=n / bins,
            high=(n + 1) / bins,
            count=int((place == n).sum()),
            score=float(p[place == n].mean()),
            right=float(y[place == n].mean()),
        )
        for n in np.unique(place).tolist()
    ]


def calibration_error(table: Sequence[Bin]) -> float:
    """Expected calibration error: the mean gap between what scores claim and how many are right."""
    total = sum(one.count for one in table)
    return sum(one.count * abs(one.score - one.right) for one in table) / total
