"""Head pruning (Michel et al., 2019): rank heads by what they contribute, and cut the least out for good."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model.model import Model
from decoupled.model.parts.attention import Attention
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared
from decoupled.train.shrink import linear
from decoupled.train.shrink.base import (
    Method,
    Weights,
    apply,
    needed,
    share_of,
    with_layers,
)
from decoupled.train.shrink.linear import blocks_of, keep_units
from decoupled.train.shrink.measure import LIMIT, importance

Scores = dict[int, Tensor]


@dataclass(frozen=True, kw_only=True)
class PruneHeads(Method):
    """Remove a share of the heads, the least important first, below and above the split by own budgets."""

    name: ClassVar[str] = "prune-heads"

    share: float = 0.3
    """Share of the heads to remove."""
    below: float | None = None
    """Of the heads below the split; `share` if not given. Saves work when passages are indexed."""
    above: float | None = None
    """Of the heads above the split; `share` if not given. Saves work at query time."""
    by: Literal["importance", "weight", "random"] = "importance"
    """|∂loss/∂gate| on data, the size of the head's output matrix, or chance."""
    normalise: bool = True
    """Scale the scores of each layer to length 1 before they are compared."""
    minimum: int = 1
    """Heads that every layer keeps."""
    steps: int = 1
    """Remove in that many steps and rank anew after each."""
    examples: int = LIMIT
    """Groups of pairs that importance is estimated from."""
    seed: int = 0

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """Rank the heads, and say which stay."""
        linear.need_floats(model.spec, self.name)
        if self.minimum < 1 or self.steps < 1:
            raise SpecError(f"minimum={self.minimum}, steps={self.steps}; choose 1 or more")
        kept = {n: list(range(k.heads)) for n, k in attention_slots(model.spec).items()}
        KeepHeads.of(kept).rewrite(
            model.spec
        )  # a kind without heads to take is refused by its name
        goal = self._goal(model.spec)
        now = model
        for step in range(1, self.steps + 1):
            scores = self._scores(now, sample)
            for members, remove in goal:
                due = remove * step // self.steps
                gone = sum(model_heads(model, n) - len(kept[n]) for n in members)
                for number, place in _least(
                    {n: scores[n] for n in members}, due - gone, self.minimum
                ):
                    kept[number][place] = -1
            kept = {n: [head for head in heads if head >= 0] for n, heads in kept.items()}
            if step < self.steps:
                now = apply(model, KeepHeads.of(kept))
        return KeepHeads.of(kept)

    def _goal(self, spec: ModelSpec) -> list[tuple[list[int], int]]:
        """Slots of each component, and how many heads go; a slot that both use counts as above."""
        upper = {layer.attention_slot for layer in spec.layers[spec.split :]}
        heads = {n: kind.heads for n, kind in attention_slots(spec).items()}
        found = []
        for name, own in (("below", self.below), ("above", self.above)):
            members = [n for n in heads if (n in upper) == (name == "above")]
            total = sum(heads[n] for n in members)
            share = self.share if own is None else own
            remove = share_of(total, share, "share" if own is None else name)
            most = total - self.minimum * len(members)
            found.append((members, min(remove, max(0, most))))
        return found

    def _scores(self, model: Model, sample: Prepared | None) -> Scores:
        slots = attention_slots(model.spec)
        if self.by == "random":
            draw = torch.Generator().manual_seed(self.seed)
            return {n: torch.rand(kind.heads, generator=draw) for n, kind in slots.items()}
        if self.by == "weight":
            weights = model.net.state_dict()
            scores = {}
            for n, block in blocks_of(model.spec, "attention").items():
                out = linear.whole(weights, f"{block.prefix}attention.out")
                scores[n] = out.T.reshape(block.part.units, -1).norm(dim=1).cpu()
        else:
            found = importance(
                model, needed(sample, self), "head", limit=self.examples, seed=self.seed
            )
            scores = {n: value.cpu() for n, value in found.items()}
        if self.normalise:
            scores = {n: value / value.norm().clamp(min=1e-12) for n, value in scores.items()}
        return scores


@dataclass(frozen=True, kw_only=True)
class KeepHeads(Method):
    """Exactly these heads, cut out of the matrices: what a gate of 0 on the others would give."""

    kept: tuple[tuple[int, tuple[int, ...]], ...]
    """Per attention slot: the heads that stay."""

    @classmethod
    def of(cls, kept: dict[int, list[int]]) -> KeepHeads:
        """From a table by slot."""
        return cls(kept=tuple((n, tuple(heads)) for n, heads in sorted(kept.items())))

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Fewer heads in each layer."""
        linear.need_floats(spec, PruneHeads.name)
        table, layers = dict(self.kept), []
        for layer in spec.layers:
            kept = table.get(layer.attention_slot)
            kind = layer.attention
            if kept is not None:
                if not kept or any(not 0 <= head < kind.heads for head in kept):
                    raise SpecError(
                        f"slot {layer.attention_slot} has heads 0..{kind.heads - 1}, and {kept} should "
                        "stay; keep at least one of them"
                    )
                layer = replace(layer, attention=kind.keep(kept))
            layers.append(layer)
        return with_layers(spec, layers)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Rows of query, key and value and columns of the output matrix; its bias stays."""
        found, blocks = dict(weights), blocks_of(before, "attention")
        for number, kept in self.kept:
            found = keep_units(found, blocks[number], before.encoder.width, kept)
        return found


def attention_slots(spec: ModelSpec) -> dict[int, Attention]:
    """The attention of each slot."""
    return {layer.attention_slot: layer.attention for layer in spec.layers}


def model_heads(model: Model, number: int) -> int:
    """Heads of a slot."""
    return attention_slots(model.spec)[number].heads


def _least(scores: Scores, count: int, minimum: int) -> list[tuple[int, int]]:
    """The `count` lowest (slot, place), leaving `minimum` in each slot."""
    ranked = sorted(
        (float(value), number, place)
        for number, values in scores.items()
        for place, value in enumerate(values)
    )
    left = {number: len(values) for number, values in scores.items()}
    chosen: list[tuple[int, int]] = []
    for _, number, place in ranked:
        if len(chosen) < count and left[number] > minimum:
            chosen.append((number, place))
            left[number] -= 1
    return chosen
