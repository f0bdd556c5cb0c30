"""Do scores mean what they say? Reliability, calibration error, and the logistic fit that mends them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.model.scoring import Floats, sigmoid

BINS = 15


@dataclass(frozen=True, kw_only=True)
class Bin:
    """The scores between two bounds: what they claim on average, and how many of them were right."""

    low: float
    high: float
    count: int
    score: float
    right: float

    def to_json(self) -> dict[str, Any]:
        """Plain values, rounded."""
        return {name: round(value, 4) for name, value in vars(self).items()}


def reliability(
    scores: Sequence[float] | Floats, right: Sequence[bool] | Floats, bins: int = BINS
) -> list[Bin]:
    """The bins of equal width that hold scores."""
    p, y = np.asarray(scores, np.float64), np.asarray(right, np.float64)
    if len(p) != len(y) or not len(p) or not ((p >= 0) & (p <= 1)).all():
        raise InputError(
            f"{len(p)} scores from 0 to 1 and {len(y)} judgments; give as many of both"
        )
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


def fit_logistic(
    features: Floats, right: npt.NDArray[np.bool_], weights: Floats | None = None
) -> Floats:
    """`[F+1]` slopes and the offset of the logistic regression of `[N,F]` features, by Newton's method.

    Judgments are smoothed as Platt does it, so that features that separate them have finite slopes.
    """
    ones = np.ones(len(right)) if weights is None else weights
    good = float(ones[right].sum())
    bad = float(ones.sum()) - good
    if not good or not bad:
        raise InputError(
            "all judgments are alike, so nothing can be learnt from them; give right and wrong ones"
        )
    target = np.where(right, (good + 1) / (good + 2), 1 / (bad + 2))
    mean, spread = features.mean(0), np.maximum(features.std(0), 1e-9)
    x = np.column_stack([(features - mean) / spread, np.ones(len(right))])
    fit = np.zeros(x.shape[1])
    for _ in range(100):
        p = sigmoid(x @ fit)
        slope = x.T @ (ones * (p - target)) + 1e-6 * fit
        curve = (x * (ones * p * (1 - p))[:, None]).T @ x + 1e-6 * np.eye(len(fit))
        step = np.linalg.solve(curve, slope)
        fit -= step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-8:
            break
    slopes = fit[:-1] / spread
    return np.append(slopes, fit[-1] - slopes @ mean)
