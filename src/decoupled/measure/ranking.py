"""Ranking metrics: nDCG, reciprocal rank and recall, as trec_eval defines them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Qrels = Mapping[str, Mapping[str, int]]
Run = Mapping[str, Sequence[str]]
"""Query id to passage ids, best first."""


def ndcg(run: Run, qrels: Qrels, k: int) -> float:
    """Mean normalised discounted cumulative gain of the first `k`; gains are the judged grades."""
    return _mean(run, qrels, lambda found, judged: _ndcg(found[:k], judged, k))


def mrr(run: Run, qrels: Qrels, k: int) -> float:
    """Mean reciprocal rank of the first relevant passage within the first `k`."""

    def reciprocal(found: Sequence[str], judged: Mapping[str, int]) -> float:
        ranks = (n for n, i in enumerate(found[:k], 1) if judged.get(i, 0) > 0)
        return 1.0 / next(ranks, math.inf)

    return _mean(run, qrels, reciprocal)


def recall(run: Run, qrels: Qrels, k: int) -> float:
    """Mean share of the relevant passages that are within the first `k`."""

    def share(found: Sequence[str], judged: Mapping[str, int]) -> float:
        relevant = {i for i, grade in judged.items() if grade > 0}
        return len(relevant & set(found[:k])) / len(relevant)

    return _mean(run, qrels, share)


def _ndcg(found: Sequence[str], judged: Mapping[str, int], k: int) -> float:
    def gain(grades: Sequence[int]) -> float:
        return sum(max(g, 0) / math.log2(place + 2) for place, g in enumerate(grades))

    ideal = gain(sorted(judged.values(), reverse=True)[:k])
    return gain([judged.get(i, 0) for i in found]) / ideal


def _mean(run: Run, qrels: Qrels, score: object) -> float:
    """Over the queries that have a relevant passage; one without an answer in the run counts 0."""
    assert callable(score)
    judged = {q: grades for q, grades in qrels.items() if any(g > 0 for g in grades.values())}
    if not judged:
        return 0.0
    return sum(score(run.get(q, ()), grades) for q, grades in judged.items()) / len(judged)
