"""Pruning of neurons: those that contribute least are cut out for good."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.methods.importance import LIMIT, gated, sample_batches
from decoupled.methods.method import FITTED, Method, Weights
from decoupled.methods.tensors import bias_of, blocks_of, need_floats, whole
from decoupled.methods.units import Kept, cut_units, narrowed, share_of, slots_above, unit_scores
from decoupled.model.model import Model
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared
from decoupled.train.loop.forward import forward_pair


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
        """Rank the neurons, and decide which stay."""
        need_floats(model.spec, self.name)
        if self.multiple < 1:
            raise SpecError(f"multiple={self.multiple}; choose 1 or more")
        scores, kept = unit_scores(self, model, sample, "ffn"), []
        upper = slots_above(model.spec, "ffn")
        for number, score in sorted(scores.items()):
            stay = len(score) - share_of(self, len(score), above=number in upper)
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
        """The spec with narrower feed-forward blocks."""
        need_floats(spec, PruneNeurons.name)
        return narrowed(spec, "ffn", self.kept)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Cut rows of the first matrix and columns of the second, and fold means into its bias."""
        moved, kept, blocks = dict(weights), dict(self.kept), blocks_of(before, "ffn")
        for number, mean in self.means:
            name = f"{blocks[number].prefix}down"
            bias = bias_of(name, weights)
            if number in kept and bias in weights:
                down = whole(weights, name)
                lost = mean.to(down, copy=True)
                lost[list(kept[number])] = 0
                # E[W a] of the lost neurons is W mean(a): added to the bias, the mean output stays.
                moved[bias] = weights[bias] + down @ lost
        return cut_units(moved, before, "ffn", self.kept)

    def summary(self) -> dict[str, Any]:
        """The widths; the weights say which neurons they are."""
        return {"method": "keep-neurons", "widths": {str(n): len(kept) for n, kept in self.kept}}


@torch.no_grad()
def _means(model: Model, sample: Prepared) -> tuple[tuple[int, Tensor], ...]:
    """The mean activation of each neuron over the sample, by slot."""
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}

    def watch(number: int, units: Tensor) -> Tensor:
        flat = units.reshape(-1, units.shape[-2]).double()
        sums[number] = sums.get(number, 0) + flat.sum(0)
        counts[number] = counts.get(number, 0) + len(flat)
        return units

    with gated(model.net.eval(), "ffn", watch):
        for batch in sample_batches(sample, model, limit=LIMIT // 4):
            forward_pair(model.net, batch, sample.task.head)
    return tuple((n, (total / counts[n]).float().cpu()) for n, total in sums.items())
