"""How the logits of a model become scores: what was learnt for it on development data. No torch here.

It is kept in the spec and is no part of the fingerprint: an index stays valid whatever the scores mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from decoupled.model.jsonable import LATER

Floats = npt.NDArray[np.float64]


def sigmoid(x: Floats) -> Floats:
    """The logistic function, without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


@dataclass(frozen=True, kw_only=True)
class Platt:
    """A probability from a logit: `sigmoid(slope * x + offset)` (Platt, 1999)."""

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, x: Floats) -> Floats:
        """The probability of each."""
        return sigmoid(self.slope * x + self.offset)


@dataclass(frozen=True, kw_only=True)
class AnswerPlatt:
    """The probability that an answer is right, from its share of all spans and the weight of all of them."""

    share: float
    """Slope of the logarithm of the answer's share of the weight of all spans."""
    weight: float
    """Slope of the logarithm of that weight, in which no answer weighs 1."""
    offset: float

    def __call__(self, shares: Floats, weight: float) -> Floats:
        """The probability of each, by its share of all spans and the logarithm of their weight."""
        logs = np.log(np.maximum(shares, 1e-30))
        return sigmoid(self.share * logs + self.weight * weight + self.offset)


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Calibration of each head, and how much the first stage says about the final score of a search."""

    DROPPED: ClassVar[frozenset[str]] = frozenset({"neighbours", "feedback", "late", "crowding"})
    """Fields of version 0.1 that are read and not used: signals which `adapt` added to a search."""

    cosine: float = 0.0
    """What one standard deviation of the cosine, over the candidates of a query, adds to the rank logit."""
    bm25: float = 0.0
    """The same of BM25."""
    fusion: float | None = None
    """Weight of BM25 beside the cosine in the hybrid first stage, both standardised; None fuses ranks."""
    search: Platt = Platt()
    """Of the rank logit with what the first stage adds."""
    rank: Platt = Platt()
    """Of the rank logit alone."""
    answer_rank: float = 0.0
    """How much of the rank logit of its passage, as a search has it, is added to the logit of a span."""
    answer: AnswerPlatt | None = None
    """Of answers in what a search found; None leaves shares of the weight of all spans and of no answer."""
    answer_given: AnswerPlatt | None = None
    """Of answers in passages that were given: most questions are asked of a passage that has something."""
    no_answer: float = 0.5
    """The score below which leaving a question unanswered is better, in what a search found."""
    no_answer_given: float | None = field(default=None, metadata=LATER)
    """The same in passages that were given; None is the same score."""

    @property
    def blend(self) -> dict[str, float]:
        """What a search adds to the rank logit, by name; what it does not is left out."""
        names = ("cosine", "bm25")
        return {name: value for name in names if (value := getattr(self, name))}

    def least(self, *, given: bool) -> float:
        """The score from which answering is better."""
        return (
            self.no_answer_given if given and self.no_answer_given is not None else self.no_answer
        )
