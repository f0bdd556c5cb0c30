"""Fit the metric of late interaction to what the cross component said about the same candidates. numpy alone.

The metric starts as the plain cosine and is moved by Adam on the cross-entropy between both rankings of a
query's candidates. No labels are needed.

Shapes: P passages of a query, N tokens of all of them, Q query tokens, W width of the codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decoupled.model.states import Ragged
from decoupled.search.answers import softmax
from decoupled.search.late_interaction.score import Floats, directions

HEAT = 2.0
"""Softens what the cross component says, whose scores are far apart."""
_B1, _B2, _EPS = 0.9, 0.99, 1e-8


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """The candidates of one query, and what the cross component made of them."""

    query: Floats
    """`[Q,W]` codes."""
    passages: Ragged
    """`[N,W]` codes of the candidates."""
    scores: npt.NDArray[np.float64]
    """`[P]` rank logits."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long to fit, and how far a step goes."""

    epochs: int = 6
    rate: float = 0.01
    stay: float = 1e-4
    """Pull towards the plain cosine."""
    seed: int = 0


def fit_metric(
    judged: Sequence[Judged],
    schedule: Schedule = Schedule(),
    progress: Callable[[int], None] | None = None,
) -> Floats:
    """The `[W,W]` metric after some passes over the queries; `progress` counts them."""
    width = judged[0].query.shape[1]
    metric, first, second = np.eye(width), np.zeros((width, width)), np.zeros((width, width))
    scale, scale_first, scale_second = 1.0, 0.0, 0.0
    draw = np.random.default_rng(schedule.seed)
    total, step = schedule.epochs * len(judged), 0
    for _ in range(schedule.epochs):
        for number in draw.permutation(len(judged)):
            step += 1
            slope_WW, slope = gradient(judged[number], metric.astype(np.float32), float(scale))
            slope_WW += schedule.stay * (metric - np.eye(width))
            rate = schedule.rate * (1 - (step - 1) / total)
            first = _B1 * first + (1 - _B1) * slope_WW
            second = _B2 * second + (1 - _B2) * slope_WW**2
            scale_first = _B1 * scale_first + (1 - _B1) * slope
            scale_second = _B2 * scale_second + (1 - _B2) * slope**2
            even1, even2 = 1 - _B1**step, 1 - _B2**step
            metric -= rate * (first / even1) / (np.sqrt(second / even2) + _EPS)
            scale -= 10 * rate * (scale_first / even1) / (np.sqrt(scale_second / even2) + _EPS)
            if progress is not None:
                progress(step)
    return metric.astype(np.float32)


def gradient(one: Judged, metric_WW: Floats, scale: float) -> tuple[npt.NDArray[np.float64], float]:
    """Slopes of the cross-entropy of one query by the metric and by the scale of its scores."""
    query_QW = directions(one.query)
    codes_NW = directions(np.asarray(one.passages.values, np.float32))
    cosines_NQ = codes_NW @ (query_QW @ metric_WW).T
    ends = one.passages.starts + one.passages.lengths
    spans = zip(one.passages.starts.tolist(), ends.tolist(), strict=True)
    best_PQ = np.stack([start + cosines_NQ[start:end].argmax(0) for start, end in spans])
    scores_P = np.take_along_axis(cosines_NQ, best_PQ, 0).sum(1, dtype=np.float64)
    excess_P = softmax(scale * scores_P) - softmax(one.scores / HEAT)
    pulled_QW = np.tensordot(scale * excess_P, codes_NW[best_PQ], axes=1)
    return query_QW.T.astype(np.float64) @ pulled_QW, float(excess_P @ scores_P)
