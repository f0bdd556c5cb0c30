"""Structured pruning: heads (Michel et al., 2019) and neurons that contribute least are cut out for good."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model.model import Model
from decoupled.model.parts.layer import Block
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared
from decoupled.train.forward import forward_pair
from decoupled.train.shrink.base import FITTED, Method, Weights, apply, with_blocks
from decoupled.train.shrink.linear import bias_of, blocks_of, keep_units, need_floats, whole
from decoupled.train.shrink.measure import LIMIT, BlockName, gated, importance

Kept = tuple[tuple[int, tuple[int, ...]], ...]
"""Per slot: the units that stay."""


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
        need_floats(model.spec, self.name)
        if self.minimum < 1 or self.steps < 1:
            raise SpecError(f"minimum={self.minimum}, steps={self.steps}; choose 1 or more")
        heads = {n: block.part.units for n, block in blocks_of(model.spec, "attention").items()}
        kept = {n: list(range(count)) for n, count in heads.items()}
        KeepHeads.of(kept).rewrite(model.spec)  # a kind without heads to take is refused by name
        upper, goals, now = _slots_above(model.spec, "attention"), [], model
        for above in (False, True):
            members = [n for n in heads if (n in upper) == above]
            total = sum(heads[n] for n in members)
            most = max(0, total - self.minimum * len(members))
            goals.append((members, min(_share(self, total, above=above), most)))
        for step in range(1, self.steps + 1):
            scores = self._scores(now, sample)
            for members, remove in goals:
                gone = sum(heads[n] - len(kept[n]) for n in members)
                due = remove * step // self.steps - gone
                for n, place in _least({n: scores[n] for n in members}, due, self.minimum):
                    kept[n][place] = -1
            kept = {n: [head for head in own if head >= 0] for n, own in kept.items()}
            if step < self.steps:
                now = apply(model, KeepHeads.of(kept))
        return KeepHeads.of(kept)

    def _scores(self, model: Model, sample: Prepared | None) -> dict[int, Tensor]:
        scores = _scores(self, model, sample, "attention")
        if not self.normalise or self.by == "random":
            return scores
        return {n: value / value.norm().clamp(min=1e-12) for n, value in scores.items()}


@dataclass(frozen=True, kw_only=True)
class KeepHeads(Method):
    """Exactly these heads, cut out of the matrices: what a gate of 0 on the others would give."""

    kept: Kept

    @classmethod
    def of(cls, kept: dict[int, list[int]]) -> KeepHeads:
        """From a table by slot."""
        return cls(kept=tuple((n, tuple(heads)) for n, heads in sorted(kept.items())))

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Fewer heads in each layer."""
        need_floats(spec, PruneHeads.name)
        blocks = blocks_of(spec, "attention")
        for number, kept in self.kept:
            heads = blocks[number].part.units
            if not kept or not set(kept) <= set(range(heads)):
                raise SpecError(
                    f"slot {number} has heads 0..{heads - 1}, and {kept} should stay; keep at least "
                    "one of them"
                )
        return _narrowed(spec, "attention", self.kept)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Rows of query, key and value and columns of the output matrix; its bias stays."""
        return _cut(weights, before, "attention", self.kept)


@dataclass(frozen=True, kw_only=True)
class PruneNeurons(Method):
    """Remove a share of each layer's neurons, below and above the split by own budgets."""

    name: ClassVar[str] = "prune-neurons"

    share: float = 0.5
    """Share of the neurons of a layer to remove."""
    below: float | None = None
    above: float | None = None
    by: Literal["importance", "weight", "random"] = "importance"
    """|activation·∂loss/∂activation| on data, the sizes of its row and column, or chance."""
    multiple: int = 8
    """Widths that stay are multiples of this, which matrix units like."""
    fold: bool = True
    """Add the mean output of what goes to the bias (where there is data to see it)."""
    examples: int = LIMIT
    seed: int = 0

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """Rank the neurons, and say which stay."""
        need_floats(model.spec, self.name)
        if self.multiple < 1:
            raise SpecError(f"multiple={self.multiple}; choose 1 or more")
        scores, kept = _scores(self, model, sample, "ffn"), []
        upper = _slots_above(model.spec, "ffn")
        for number, score in sorted(scores.items()):
            stay = len(score) - _share(self, len(score), above=number in upper)
            stay = min(len(score), max(self.multiple, round(stay / self.multiple) * self.multiple))
            best = score.argsort(descending=True, stable=True)[:stay]
            kept.append((number, tuple(sorted(best.tolist()))))
        means = _means(model, sample) if self.fold and sample is not None else ()
        return KeepNeurons(kept=tuple(kept), means=means)


@dataclass(frozen=True, kw_only=True)
class KeepNeurons(Method):
    """Exactly these neurons, cut out of the matrices."""

    kept: Kept
    means: tuple[tuple[int, Tensor], ...] = field(default=(), metadata=FITTED)
    """Mean activations per slot; what those of lost neurons add goes to the bias."""

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Narrower feed-forward maps."""
        need_floats(spec, PruneNeurons.name)
        return _narrowed(spec, "ffn", self.kept)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Rows of the first map, columns of the second, and means into its bias."""
        found, kept, blocks = dict(weights), dict(self.kept), blocks_of(before, "ffn")
        for number, mean in self.means:
            name = f"{blocks[number].prefix}down"
            bias = bias_of(name, weights)
            if number in kept and bias in weights:
                down = whole(weights, name)
                lost = mean.to(down, copy=True)
                lost[list(kept[number])] = 0
                found[bias] = weights[bias] + down @ lost
        return _cut(found, before, "ffn", self.kept)

    def summary(self) -> dict[str, Any]:
        """The widths; the weights say which neurons they are."""
        return {"method": "keep-neurons", "widths": {str(n): len(kept) for n, kept in self.kept}}


# Of heads and neurons alike -----------------------------------------------------------------------


def _scores(
    method: PruneHeads | PruneNeurons, model: Model, sample: Prepared | None, name: BlockName
) -> dict[int, Tensor]:
    """Per slot how much each unit matters, as the method asks."""
    blocks, weights = blocks_of(model.spec, name), model.net.state_dict()
    if method.by == "random":
        draw = torch.Generator().manual_seed(method.seed)
        return {n: torch.rand(block.part.units, generator=draw) for n, block in blocks.items()}
    if method.by == "importance":
        data = method.needed(sample)
        scores = importance(model, data, name, limit=method.examples, seed=method.seed)
    elif name == "attention":
        outs = {n: whole(weights, f"{block.prefix}attention.out") for n, block in blocks.items()}
        scores = {n: w.T.reshape(blocks[n].part.units, -1).norm(dim=1) for n, w in outs.items()}
    else:
        pairs = {
            n: [whole(weights, b.prefix + end) for end in ("up", "down")] for n, b in blocks.items()
        }
        scores = {n: up.norm(dim=1) * down.norm(dim=0) for n, (up, down) in pairs.items()}
    return {n: score.cpu() for n, score in scores.items()}


def _slots_above(spec: ModelSpec, name: BlockName) -> set[int]:
    """Slots above the split; one that both components use counts as above."""
    return {layer.block(name).slot for layer in spec.layers[spec.split :]}


def _share(method: PruneHeads | PruneNeurons, total: int, *, above: bool) -> int:
    """How many of `total` units of a component go: by its own share, or by that of both."""
    name = "above" if above else "below"
    name = "share" if getattr(method, name) is None else name
    share = getattr(method, name)
    if not 0 <= share < 1:
        raise SpecError(f"{name}={share}; choose a share from 0 up to, but not including, 1")
    return round(total * share)


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


def _narrowed(spec: ModelSpec, name: BlockName, kept: Kept) -> ModelSpec:
    table = dict(kept)

    def keep(block: Block) -> Block:
        units = table.get(block.slot) if block.name == name else None
        return block if units is None else replace(block, part=block.part.keep(units))

    return with_blocks(spec, keep)


def _cut(weights: Weights, spec: ModelSpec, name: BlockName, kept: Kept) -> Weights:
    blocks = blocks_of(spec, name)
    for number, units in kept:
        weights = keep_units(weights, blocks[number], spec.encoder.width, units)
    return weights


@torch.no_grad()
def _means(model: Model, sample: Prepared) -> tuple[tuple[int, Tensor], ...]:
    """Mean of each neuron over the sample, by slot."""
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}

    def watch(number: int, units: Tensor) -> Tensor:
        flat = units.reshape(-1, units.shape[-2]).double()
        sums[number] = sums.get(number, 0) + flat.sum(0)
        counts[number] = counts.get(number, 0) + len(flat)
        return units

    with gated(model.net.eval(), "ffn", watch):
        for batch in sample.batches(model, limit=LIMIT // 4):
            forward_pair(model.net, batch, sample.task.head)
    return tuple((n, (total / counts[n]).float().cpu()) for n, total in sums.items())
