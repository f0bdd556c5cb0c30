"""Late interaction as a part of a model: its projection, and how far a search may rely on it."""

from dataclasses import dataclass, field

from decoupled.errors import SpecError
from decoupled.model.jsonable import LATER
from decoupled.model.parts.linear import WHOLE, Tensors, TensorSpec

LATE = "late."
"""Prefix of the names of the tensors of late interaction."""


@dataclass(frozen=True, kw_only=True)
class ReadingLoss:
    """Loss against scoring every candidate, as a difference of measures between 0 and 1."""

    ndcg: float
    """Loss of nDCG@10 of searches, averaged over the fields of the data."""
    f1: float | None = None
    """Loss of F1 of answers; None where no question of the data had an answer."""


@dataclass(frozen=True, kw_only=True)
class LateSpec:
    """Late interaction: a learned linear layer makes unit vectors of `width` from states as they are stored.

    A pair's score is the mean over the query's tokens but special ones of the best match, times a scale.
    """

    width: int
    keep: float | None = None
    """Share of a hundred candidates that the cross component reads; None reads all."""
    slope: float = field(default=0.0, metadata=LATER)
    """Rank logits per standard deviation of the late score, over the candidates of a query."""
    loss: ReadingLoss | None = field(default=None, metadata=LATER)
    """Loss on development data of reading no more candidates than `keep` says."""

    def __post_init__(self) -> None:
        if self.keep is not None and not 0 < self.keep <= 1:
            raise SpecError(f"late.keep={self.keep}; choose a share above 0 up to 1, or none")

    def tensors(self, states: int) -> Tensors:
        """Its tensors, by name, for states of that width."""
        return WHOLE.tensors("late", states, self.width, bias=False) | {
            f"{LATE}scale": TensorSpec((1,))
        }


def reading(late: LateSpec | None) -> dict[str, float | None] | str:
    """What a search reads of its candidates by default, and what that costs, for `info`."""
    if late is None:
        return "all: the model learnt no late interaction"
    if late.keep is None or late.loss is None:
        return f"{late.keep or 1:.0%} of a hundred candidates; no loss was measured"
    return {"share": late.keep, "ndcg_loss": late.loss.ndcg, "f1_loss": late.loss.f1}
