"""How right an answer is, by the rules of the official SQuAD script."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Lower case, without punctuation, articles and extra space: what SQuAD compares."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def answer_f1(predicted: str, gold: str) -> float:
    """Overlap of words between two answers, 0 to 1; two empty answers agree."""
    a, b = normalise_answer(predicted).split(), normalise_answer(gold).split()
    if not a or not b:
        return float(a == b)
    common = sum((Counter(a) & Counter(b)).values())
    return 2 * common / (len(a) + len(b)) if common else 0.0


def exact_match(predicted: str, gold: str) -> float:
    """1 when the normalised answers are equal."""
    return float(normalise_answer(predicted) == normalise_answer(gold))


def best_over(golds: Iterable[str], predicted: str) -> tuple[float, float]:
    """(exact, f1) against the gold answer that fits best; no gold answers means none is right.

    As in the script of SQuAD 2.0, a gold answer of which nothing is left to compare (`the`) does not count.
    """
    answers = [gold for gold in golds if normalise_answer(gold)] or [""]
    return (
        max(exact_match(predicted, gold) for gold in answers),
        max(answer_f1(predicted, gold) for gold in answers),
    )
