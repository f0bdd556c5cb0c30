"""Structured pruning of the feed-forward maps: neurons that contribute least are cut out for good."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model.model import Model
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared
from decoupled.train.forward import forward_pair
from decoupled.train.shrink import linear
from decoupled.train.shrink.base import (
    FITTED,
    Method,
    Weights,
    needed,
    share_of,
    with_layers,
)
from decoupled.train.shrink.measure import LIMIT, gated, importance


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
        linear.need_floats(model.spec, self.name)
        if self.multiple < 1:
            raise SpecError(f"multiple={self.multiple}; choose 1 or more")
        scores = self._scores(model, sample)
        upper = {layer.ffn_slot for layer in model.spec.layers[model.spec.split :]}
        kept = []
        for number, score in sorted(scores.items()):
            part, own = ("above", self.above) if number in upper else ("below", self.below)
            share, named = (self.share, "share") if own is None else (own, part)
            stay = len(score) - share_of(len(score), share, named)
            stay = min(len(score), max(self.multiple, round(stay / self.multiple) * self.multiple))
            best = score.argsort(descending=True, stable=True)[:stay]
            kept.append((number, tuple(sorted(best.tolist()))))
        means = _means(model, sample) if self.fold and sample is not None else ()
        return KeepNeurons(kept=tuple(kept), means=means)

    def _scores(self, model: Model, sample: Prepared | None) -> dict[int, Tensor]:
        blocks = linear.blocks_of(model.spec, "ffn")
        widths = {n: block.part.units for n, block in blocks.items()}
        if self.by == "random":
            draw = torch.Generator().manual_seed(self.seed)
            return {n: torch.rand(width, generator=draw) for n, width in widths.items()}
        if self.by == "importance":
            data = needed(sample, self)
            found = importance(model, data, "neuron", limit=self.examples, seed=self.seed)
            return {n: score.cpu() for n, score in found.items()}
        weights, scores = model.net.state_dict(), {}
        for number, block in blocks.items():
            up, down = (linear.whole(weights, block.prefix + name) for name in ("up", "down"))
            scores[number] = (up.norm(dim=1) * down.norm(dim=0)).cpu()
        return scores


@dataclass(frozen=True, kw_only=True)
class KeepNeurons(Method):
    """Exactly these neurons, cut out of the matrices."""

    kept: tuple[tuple[int, tuple[int, ...]], ...]
    """Per feed-forward slot: the neurons that stay."""
    means: tuple[tuple[int, Tensor], ...] = field(default=(), metadata=FITTED)
    """Mean activations per slot; what those of lost neurons add goes to the bias."""

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Narrower feed-forward maps."""
        linear.need_floats(spec, PruneNeurons.name)
        table = dict(self.kept)
        layers = [
            replace(layer, ffn=layer.ffn.keep(table[layer.ffn_slot]))
            if layer.ffn_slot in table
            else layer
            for layer in spec.layers
        ]
        return with_layers(spec, layers)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Rows of the first map, columns of the second, and means into its bias."""
        found, means = dict(weights), dict(self.means)
        blocks = linear.blocks_of(before, "ffn")
        for number, kept in self.kept:
            down_name = f"{blocks[number].prefix}down"
            bias = linear.bias_of(down_name, weights)
            if number in means and bias in weights:
                lost = torch.ones(len(means[number]), dtype=torch.bool)
                lost[list(kept)] = False
                down = linear.whole(weights, down_name)
                mean = means[number].to(down) * lost.to(down)
                found[bias] = weights[bias] + down @ mean
            found = linear.keep_units(found, blocks[number], before.encoder.width, kept)
        return found

    def summary(self) -> dict[str, Any]:
        """The widths; the weights say which neurons they are."""
        return {"method": "keep-neurons", "widths": {str(n): len(kept) for n, kept in self.kept}}


@torch.no_grad()
def _means(model: Model, sample: Prepared) -> tuple[tuple[int, Tensor], ...]:
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}

    def watch(number: int, units: Tensor) -> Tensor:
        flat = units.reshape(-1, units.shape[-2]).double()
        sums[number] = sums.get(number, torch.zeros_like(flat[0])) + flat.sum(0)
        counts[number] = counts.get(number, 0) + len(flat)
        return units

    with gated(model.net.eval(), "neuron", watch):
        for batch in sample.batches(model, limit=LIMIT // 4):
            forward_pair(model.net, batch, sample.task.head)
    return tuple((n, (total / counts[n]).float().cpu()) for n, total in sums.items())
