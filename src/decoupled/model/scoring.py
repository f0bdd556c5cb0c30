"""How the logits of a model become scores: what was learnt for it on development data. No torch here.

It is kept in the spec and is no part of the fingerprint: an index stays valid whatever the scores mean.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from decoupled.model.jsonable import LATER

Floats = npt.NDArray[np.float64]


def sigmoid(x: Floats) -> Floats:
    """The logistic function, without overflow."""
    # 1 / (1 + e^-x) overflows for large negative x; the logarithm of the denominator does not.
    return np.exp(-np.logaddexp(0.0, -x))


@dataclass(frozen=True, kw_only=True)
class Platt:
    """A probability from a logit: `sigmoid(slope * x + offset)` (Platt, 1999)."""

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, x: Floats) -> Floats:
        """The probability of each logit."""
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
        # A share may underflow to 0, whose logarithm is infinite.
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
    """What one standard deviation of BM25, over the candidates of a query, adds to the rank logit."""
    fusion: float | None = None
    """Weight of BM25 beside the cosine in the hybrid first stage, both standardised; None fuses ranks."""
    search: Platt = Platt()
    """Calibration of the rank logit plus what the first stage adds, as a search computes it."""
    rank: Platt = Platt()
    """Calibration of the rank logit alone."""
    answer_rank: float = 0.0
    """Factor of a passage's rank logit, as a search computes it, in the logit of its answer spans."""
    answer: AnswerPlatt | None = None
    """Calibration of answers in retrieved passages, learnt where half of the questions have no answer."""
    answer_given: AnswerPlatt | None = None
    """Calibration of answers where the caller names the passages, which hold an answer more often."""
    no_answer: float = 0.5
    """Score below which no answer is better than the best one, in passages that a search retrieved."""
    no_answer_given: float | None = field(default=None, metadata=LATER)
    """Score below which no answer is better, in passages that the caller names; None uses `no_answer`."""

    @property
    def blend(self) -> dict[str, float]:
        """Weights, by name, of the first-stage scores that a search adds to the rank logit; no zeros."""
        names = ("cosine", "bm25")
        return {name: value for name in names if (value := getattr(self, name))}

    def answer_threshold(self, *, passages_given: bool) -> float | None:
        """The score below which a question is left unanswered; None where that was not learnt."""
        if passages_given:
            least = self.no_answer if self.no_answer_given is None else self.no_answer_given
            return least if self.answer_given else None
        # Earlier versions wrote 0.5 without having learnt it: such models answer every question.
        return self.no_answer if self.answer and self.no_answer != Scoring.no_answer else None
