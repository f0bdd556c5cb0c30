"""One result from those of the shards, each of which answers for its own passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from decoupled.search.decide import sigmoid
from decoupled.search.request import Request
from decoupled.search.results import Answers, Hits, Timing


def merge_hits(request: Request, found: Sequence[Hits], *, total_ms: float) -> Hits:
    """The best hits of all shards, whose scores must be logits; probabilities unless they are wanted raw."""
    hits = sorted((hit for hits in found for hit in hits), key=lambda h: -h.score)[: request.k]
    if not request.raw:
        chances = sigmoid(np.array([hit.score for hit in hits], np.float64)).tolist()
        hits = [replace(hit, score=score) for hit, score in zip(hits, chances, strict=True)]
    return Hits(
        query=request.query,
        items=tuple(hits),
        timing=_timing(found, total_ms),
        tokens=sum(hits.tokens for hits in found),
    )


def merge_answers(
    request: Request, found: Sequence[Answers], *, null: bool, total_ms: float
) -> Answers:
    """The best answers of all shards; a score is the share of the weight of all spans of all shards.

    `null` says that the head learnt to give no answer, which weighs 1 once, however many shards there are.
    """

    def whole(weight: float) -> float:
        return float(np.logaddexp(weight, 0.0)) if null else weight

    weights = [answers.weight for answers in found]
    weight = float(np.logaddexp.reduce(weights)) if weights else -np.inf
    items = [
        replace(answer, score=answer.score * float(np.exp(whole(answers.weight) - whole(weight))))
        for answers in found
        for answer in answers
    ]
    heavy = (answer for answer in items if answer.score >= request.threshold)
    return Answers(
        query=request.query,
        items=tuple(sorted(heavy, key=lambda a: -a.score)[: request.k]),
        timing=_timing(found, total_ms),
        tokens=sum(answers.tokens for answers in found),
        weight=weight,
    )


def _timing(found: Sequence[Hits | Answers], total_ms: float) -> Timing:
    """Shards work at the same time, so each stage takes as long as its slowest."""
    stages = [name for name in vars(Timing()) if name != "total_ms"]
    slowest = {n: max((getattr(f.timing, n) for f in found), default=0.0) for n in stages}
    return Timing(**slowest, total_ms=total_ms)
