"""From logits to results: passages in order, answers that compare across passages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import ModelSpec
from decoupled.runtime.base import Logits
from decoupled.search import spans
from decoupled.search.pool import Pool
from decoupled.search.results import Answer, Hit

Floats = npt.NDArray[np.float64]


def hits(found: Pool, logits: Logits, k: int | None, *, raw: bool = False) -> tuple[Hit, ...]:
    """The `k` best passages by their best windows; scores are probabilities, or logits with `raw`."""
    values = logits["rank"].values[:, 0].astype(np.float64)
    scores = values if raw else sigmoid(values)
    return tuple(
        Hit(
            id=excerpt.id,
            score=float(scores[window]),
            text=excerpt.text,
            title=excerpt.title,
            meta=excerpt.meta,
            offset=excerpt.start,
        )
        for window, excerpt in found.best(values, k)
    )


def heads_for_answers(spec: ModelSpec) -> tuple[HeadKind, ...]:
    """The span head, and the rank head where it must make spans of different passages comparable."""
    ranked = not spec.head("span").null and any(h.kind == "rank" for h in spec.heads)
    return ("span", "rank") if ranked else ("span",)


def answers(spec: ModelSpec, found: Pool, logits: Logits, k: int) -> tuple[list[Answer], float]:
    """Answers, best first, none overlapping a better one of its passage; and the weight of all spans."""
    if not len(found):
        return [], -np.inf
    ends = {"before": len(spec.text.passage_prefix), "after": len(spec.text.passage_suffix)}
    null = spec.head("span").null
    scores = spans.window_scores(logits["span"], **ends)
    # What makes spans of different passages comparable: the odds against no answer where the head
    # learnt it, else the relevance of the passage (measured: benchmarks/starter.py).
    shift = -scores.null if null else np.zeros(len(found))
    if "rank" in logits:
        shift = np.log(sigmoid(logits["rank"].values[:, 0].astype(np.float64)))
    weight = float(np.logaddexp.reduce(scores.total + shift))
    total = float(np.logaddexp(weight, 0.0)) if null else weight
    order = np.argsort(-(scores.best + shift), kind="stable")[: 4 * k + 4].tolist()
    made = []
    for window, (key, excerpt) in zip(order, found.describe(order), strict=True):
        for span in spans.best_spans(logits["span"][window][1:], **ends, k=k):
            start = int(excerpt.offsets[span.first, 0])
            end = int(excerpt.offsets[span.last, 1])
            share = span.score + shift[window]
            if end > start and not (null and share < 0):
                answer = Answer(
                    text=excerpt.text[start:end],
                    score=float(np.exp(share - total)),
                    start=start,
                    end=end,
                    passage_id=excerpt.id,
                    passage=excerpt.text,
                    offset=excerpt.start,
                )
                made.append((key, answer))
    return merge_overlapping(sorted(made, key=lambda keyed: -keyed[1].score)), weight


def merge_overlapping(found: Sequence[tuple[object, Answer]]) -> list[Answer]:
    """Answers, best first, without those that overlap a better one in the same document, known by its key."""
    kept: list[tuple[object, Answer]] = []
    for key, answer in found:
        start, end = answer.offset + answer.start, answer.offset + answer.end
        if not any(
            same == key and start < other.offset + other.end and other.offset + other.start < end
            for same, other in kept
        ):
            kept.append((key, answer))
    return [answer for _, answer in kept]


def sigmoid(x: Floats) -> Floats:
    """The logistic function, without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


def softmax(x: Floats) -> Floats:
    """Shares that sum to one."""
    return np.exp(x - np.logaddexp.reduce(x))
