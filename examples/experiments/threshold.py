"""The threshold of no answer that suits a tune split best."""

from __future__ import annotations

import numpy as np

from decoupled.train.data.examples import Examples
from decoupled.train.evaluate import PredictedSpans, judged_answers


def best_threshold(found: PredictedSpans, examples: Examples) -> float:
    """The null threshold with the best F1 on these examples; draw them from the tune split."""
    answered = judged_answers(found, examples, np.inf).each
    empty = judged_answers(found, examples, -np.inf).each
    questions = np.unique(examples.question)
    gap = (found.null - found.best)[questions]
    order = np.argsort(gap, kind="stable")
    # After place i, the first i questions (small gaps) are answered and the rest are not.
    total = np.concatenate([[0.0], np.cumsum(answered[order])])
    total += empty.sum() - np.concatenate([[0.0], np.cumsum(empty[order])])
    cut = int(total.argmax())
    return float(gap[order[cut - 1]]) if cut else float(gap[order[0]]) - 1.0
