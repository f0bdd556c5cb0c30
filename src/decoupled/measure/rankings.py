"""Ranking metrics: nDCG, reciprocal rank and recall as trec_eval defines them, and Kendall's tau."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Grades = Sequence[int]
"""Judged grades; those above 0 are relevant."""
Qrels = Mapping[str, Mapping[str, int]]
Run = Mapping[str, Sequence[str]]
"""Query id to passage ids, best first."""


def reciprocal_rank(ranked: Grades, k: int) -> float:
    """One over the rank of the first relevant passage, 0 where it is not within the first `k`."""
    return 1.0 / next((rank for rank, grade in enumerate(ranked[:k], 1) if grade > 0), math.inf)


def normalised_gain(ranked: Grades, judged: Grades, k: int) -> float:
    """Discounted cumulative gain of the first `k`, over that of the best order of all judged passages."""

    def gain(grades: Grades) -> float:
        return sum(max(grade, 0) / math.log2(n + 2) for n, grade in enumerate(grades[:k]))

    return gain(ranked) / gain(sorted(judged, reverse=True))


def mrr(run: Run, qrels: Qrels, k: int) -> float:
    """Mean reciprocal rank of the first relevant passage within the first `k`."""
    return _mean(run, qrels, lambda ranked, judged: reciprocal_rank(ranked, k))


def ndcg(run: Run, qrels: Qrels, k: int) -> float:
    """Mean normalised discounted cumulative gain of the first `k`; gains are the judged grades."""
    return _mean(run, qrels, lambda ranked, judged: normalised_gain(ranked, judged, k))


def recall(run: Run, qrels: Qrels, k: int) -> float:
    """Mean share of the relevant passages that are within the first `k`."""

    def share(ranked: Grades, judged: Grades) -> float:
        return sum(grade > 0 for grade in ranked[:k]) / sum(grade > 0 for grade in judged)

    return _mean(run, qrels, share)


def _mean(run: Run, qrels: Qrels, score: Callable[[Grades, Grades], float]) -> float:
    """Over the queries that have a relevant passage; one that the run lacks counts 0."""
    judged = {q: grades for q, grades in qrels.items() if any(g > 0 for g in grades.values())}
    if not judged:
        return 0.0
    scores = (
        score([grades.get(i, 0) for i in run.get(q, ())], list(grades.values()))
        for q, grades in judged.items()
    )
    return sum(scores) / len(judged)


def kendall(a: Sequence[float], b: Sequence[float]) -> float:
    """Kendall's tau-b of two score lists: 1 same order, -1 reversed, 0 when either is all ties."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    dx, dy = np.sign(x[:, None] - x), np.sign(y[:, None] - y)
    size = np.sqrt((dx**2).sum() * (dy**2).sum())
    return float((dx * dy).sum() / size) if size else 0.0
