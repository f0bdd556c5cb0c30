"""Pruning of heads (Michel et al., 2019): those that contribute least are cut out for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from decoupled.errors import SpecError
from decoupled.methods.importance import LIMIT
from decoupled.methods.method import Method, Weights, apply
from decoupled.methods.tensors import blocks_of, need_floats
from decoupled.methods.units import Kept, cut_units, narrowed, share_of, slots_above, unit_scores
from decoupled.model.model import Model
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared


@dataclass(frozen=True, kw_only=True)
class PruneHeads(Method):
    """Remove a share of the heads, the least important first, below and above the split by own budgets."""

    name: ClassVar[str] = "prune-heads"

    share: float = 0.3
    """Share of the heads to remove."""
    below: float | None = None
    """Share of the heads below the split; `share` if not given. Saves work when passages are indexed."""
    above: float | None = None
    """Share of the heads above the split; `share` if not given. Saves work at query time."""
    by: Literal["importance", "weight", "random"] = "importance"
    """|∂loss/∂gate| on data, the size of the head's output matrix, or chance."""
    normalise: bool = True
    """Scale the scores of each layer to length 1 before they are compared."""
    minimum: int = 1
    """The number of heads that every layer keeps."""
    steps: int = 1
    """Remove in that many steps and rank anew after each."""
    examples: int = LIMIT
    """Groups of pairs that importance is estimated from."""
    seed: int = 0

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """Rank the heads, and decide which stay."""
        need_floats(model.spec, self.name)
        if self.minimum < 1 or self.steps < 1:
            raise SpecError(f"minimum={self.minimum}, steps={self.steps}; choose 1 or more")
        heads = {n: block.part.units for n, block in blocks_of(model.spec, "attention").items()}
        kept = {n: list(range(count)) for n, count in heads.items()}
        KeepHeads.of(kept).rewrite(model.spec)  # a kind without heads to take is refused by name
        upper, goals, now = slots_above(model.spec, "attention"), [], model
        for above in (False, True):
            members = [n for n in heads if (n in upper) == above]
            total = sum(heads[n] for n in members)
            most = max(0, total - self.minimum * len(members))
            goals.append((members, min(share_of(self, total, above=above), most)))
        for step in range(1, self.steps + 1):
            scores = self._scores(now, sample)
            for members, remove in goals:
                gone = sum(heads[n] - len(kept[n]) for n in members)
                # Rounded over all steps, so that exactly the whole budget is removed in the end.
                due = remove * step // self.steps - gone
                for n, place in _least({n: scores[n] for n in members}, due, self.minimum):
                    kept[n][place] = -1
            kept = {n: [head for head in own if head >= 0] for n, own in kept.items()}
            if step < self.steps:
                now = apply(model, KeepHeads.of(kept))
        return KeepHeads.of(kept)

    def _scores(self, model: Model, sample: Prepared | None) -> dict[int, Tensor]:
        scores = unit_scores(self, model, sample, "attention")
        if not self.normalise or self.by == "random":
            return scores
        # Scores of different layers are on different scales (Michel et al., 2019).
        return {n: value / value.norm().clamp(min=1e-12) for n, value in scores.items()}


@dataclass(frozen=True, kw_only=True)
class KeepHeads(Method):
    """Exactly these heads, cut out of the matrices: what a gate of 0 on the others would give."""

    kept: Kept

    @classmethod
    def of(cls, kept: dict[int, list[int]]) -> KeepHeads:
        """The method for a table of kept heads by slot."""
        return cls(kept=tuple((n, tuple(heads)) for n, heads in sorted(kept.items())))

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The spec with fewer heads in each layer."""
        need_floats(spec, PruneHeads.name)
        blocks = blocks_of(spec, "attention")
        for number, kept in self.kept:
            heads = blocks[number].part.units
            if not kept or not set(kept) <= set(range(heads)):
                raise SpecError(
                    f"slot {number} has heads 0..{heads - 1}, and {kept} should stay; keep at least "
                    "one of them"
                )
        return narrowed(spec, "attention", self.kept)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Rows of query, key and value and columns of the output matrix; its bias stays."""
        return cut_units(weights, before, "attention", self.kept)


def _least(scores: dict[int, Tensor], count: int, minimum: int) -> list[tuple[int, int]]:
    """The `count` lowest (slot, place), leaving `minimum` in each slot."""
    ranked = sorted((float(x), n, i) for n, own in scores.items() for i, x in enumerate(own))
    left = {number: len(values) for number, values in scores.items()}
    chosen: list[tuple[int, int]] = []
    for _, number, place in ranked:
        if len(chosen) < count and left[number] > minimum:
            chosen.append((number, place))
            left[number] -= 1
    return chosen
