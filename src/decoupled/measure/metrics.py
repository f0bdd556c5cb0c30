"""How right answers and rankings are.

Answers are compared by the rules of the official SQuAD script; nDCG, reciprocal rank and recall are those of
trec_eval.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from decoupled.search.answers import normalise_answer


def answer_f1(predicted: str, gold: str) -> float:
    """Overlap of words between two answers, 0 to 1; two empty answers agree."""
    a, b = normalise_answer(predicted).split(), normalise_answer(gold).split()
    if not a or not b:
        return float(a == b)
    common = sum((Counter(a) & Counter(b)).values())
    return 2 * common / (len(a) + len(b)) if common else 0.0


def best_over(golds: Iterable[str], predicted: str) -> tuple[float, float]:
    """(exact, f1) against the gold answer that fits best; no gold answers means none is right.

    As in the script of SQuAD 2.0, a gold answer of which nothing is left to compare (`the`) does not count.
    """
    answers = [gold for gold in golds if normalise_answer(gold)] or [""]
    exact = normalise_answer(predicted) in map(normalise_answer, answers)
    return float(exact), max(answer_f1(predicted, gold) for gold in answers)


Grades = Sequence[int]
"""Judged grades; those above 0 are relevant."""
Qrels = Mapping[str, Mapping[str, int]]
Run = Mapping[str, Sequence[str]]
"""Query id to passage ids, best first."""


def reciprocal_rank(ranked: Grades, k: int) -> float:
    """One over the rank of the first relevant passage, 0 where it is not within the first `k`."""
    return 1.0 / next((rank for rank, grade in enumerate(ranked[:k], 1) if grade > 0), math.inf)


def normalised_gain(ranked: Grades, all_grades: Grades, k: int) -> float:
    """Discounted cumulative gain of the first `k`, over that of the best order of all judged passages."""

    def gain(grades: Grades) -> float:
        # The gain is the grade itself, as in trec_eval; 2^grade - 1 is another convention.
        return sum(max(grade, 0) / math.log2(n + 2) for n, grade in enumerate(grades[:k]))

    return gain(ranked) / gain(sorted(all_grades, reverse=True))


def mrr(run: Run, qrels: Qrels, k: int) -> float:
    """Mean reciprocal rank of the first relevant passage within the first `k`."""
    return _mean(run, qrels, lambda ranked, grades: reciprocal_rank(ranked, k))


def ndcg(run: Run, qrels: Qrels, k: int) -> float:
    """Mean normalised discounted cumulative gain of the first `k`; gains are the judged grades."""
    return _mean(run, qrels, lambda ranked, grades: normalised_gain(ranked, grades, k))


def recall(run: Run, qrels: Qrels, k: int) -> float:
    """Mean share of the relevant passages that are within the first `k`."""

    def share(ranked: Grades, grades: Grades) -> float:
        return sum(grade > 0 for grade in ranked[:k]) / sum(grade > 0 for grade in grades)

    return _mean(run, qrels, share)


def _mean(run: Run, qrels: Qrels, score: Callable[[Grades, Grades], float]) -> float:
    """Mean score over queries with a relevant passage; a query that the run lacks counts 0."""
    relevant = {q: grades for q, grades in qrels.items() if any(g > 0 for g in grades.values())}
    if not relevant:
        return 0.0
    scores = (
        score([grades.get(i, 0) for i in run.get(q, ())], list(grades.values()))
        for q, grades in relevant.items()
    )
    return sum(scores) / len(relevant)


def kendall(a: Sequence[float], b: Sequence[float]) -> float:
    """Kendall's tau-b of two score lists: 1 same order, -1 reversed, 0 when either is all ties."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    dx, dy = np.sign(x[:, None] - x), np.sign(y[:, None] - y)
    # Each pair of items is in both sums twice, which cancels out.
    size = np.sqrt((dx**2).sum() * (dy**2).sum())
    return float((dx * dy).sum() / size) if size else 0.0
