"""Fewer layers: LayerDrop while training (Fan et al., 2020), and the extraction of any depth."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, combinations, count, product
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from decoupled.errors import SpecError
from decoupled.methods.importance import LIMIT, batch_loss, loss_of, sample_batches
from decoupled.methods.method import BeforeSteps, Method, apply, with_layers
from decoupled.model.model import Model
from decoupled.model.nn.block import Context
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.nn.frame import take
from decoupled.model.nn.stack import Run
from decoupled.model.spec import ModelSpec
from decoupled.train.data.batches import Batch
from decoupled.train.data.prepare import Prepared
from decoupled.train.loop.forward import forward_pair

RATE, DECAY = 1e-2, 0.9
"""Learning rate of the gates, and decay of the running mean of their probabilities."""
TRIALS = 64
"""The most subsets that are all tried; beyond that the search is greedy."""


@dataclass(frozen=True, kw_only=True)
class LayerDrop(Method):
    """While training, each layer is skipped with this probability: one draw per layer and step."""

    name: ClassVar[str] = "layerdrop"
    by_training: ClassVar[bool] = True

    rate: float = 0.2
    blocks: bool = False
    """Draw for attention and for the feed-forward map of a layer apart, instead of for both together."""
    seed: int = 0

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The model stays as it is; `keep-layers` takes layers out."""
        if not 0 <= self.rate <= 1:
            raise SpecError(f"rate={self.rate}; choose a probability from 0 to 1")
        if self.blocks and any(layer.reversible for layer in spec.layers):
            raise SpecError("blocks of reversible layers cannot be dropped alone; leave blocks out")
        return spec

    @contextmanager
    def hook(self, student: PairEncoder, teacher: PairEncoder | None) -> BeforeSteps:
        """Skip layers in training steps, never in evaluation; both texts of a pair see the same depth."""
        layers = student.spec.layers
        names = [block.name for block in layers[0].blocks] if self.blocks else [""]
        skipped = {(n, name): False for n in range(len(layers)) for name in names}

        def tick(step: int, total: int) -> None:
            # Seeded by the step, so that a run that goes on from a checkpoint skips the same
            # layers.
            draw = np.random.default_rng([self.seed, step]).random(len(skipped))
            skipped.update(zip(skipped, (draw < self.rate).tolist(), strict=True))

        def act(context: Context, x_BTD: Tensor, run: Run) -> Tensor:
            # What is skipped is the identity on the rows that are read, without rescaling (Fan et al., 2020).
            skips = student.training and skipped.get((context.number, ""), False)
            return take(x_BTD, context.rows) if skips else run(context, x_BTD)

        def after(name: str, arguments: tuple[Any, ...], y_BRD: Tensor) -> Tensor:
            x_BTD, context = arguments
            skips = student.training and skipped.get((context.number, name), False)
            return take(x_BTD, context.rows) if skips else y_BRD

        with student.stack.hook(act), ExitStack() as hooks:
            for name in names if self.blocks else ():
                for module in student.stack.get_submodule(name).children():
                    hook = module.register_forward_hook(
                        lambda _, x, y_BRD, name=name: after(name, x, y_BRD)
                    )
                    hooks.callback(hook.remove)
            yield tick


@dataclass(frozen=True, kw_only=True)
class KeepLayers(Method):
    """Keep some layers: named ones, every other, those that a search on data finds, or learned ones."""

    name: ClassVar[str] = "keep-layers"

    layers: tuple[int, ...] = ()
    """The layers that stay, counted from 0; leave it empty to use `every` or `count`."""
    every: int | None = None
    """Drop every second, third… layer, counted from 1."""
    count: int | None = None
    """The number of layers that stay; they are chosen on data."""
    below: int | None = None
    """The number of these that stay below the split; by default in proportion."""
    by: Literal["search", "learned"] = "search"
    """For `count`: the subset with the least loss, or layers whose learned gates are open most."""
    steps: int = 200
    """Batches that the gates learn from."""
    examples: int = LIMIT
    """Groups of pairs that a search judges each subset by."""
    seed: int = 0

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """Decide which layers stay."""
        choices = [bool(self.layers), self.every is not None, self.count is not None]
        if sum(choices) != 1:
            raise SpecError("keep-layers needs one of layers=0/2/4, every=2 or count=4")
        total, split = len(model.spec.layers), model.spec.split
        if self.layers:
            stay = self.layers
        elif self.every is not None:
            if self.every < 2:
                raise SpecError(
                    f"every={self.every}; choose 2 to drop every other layer, 3 for less"
                )
            stay = tuple(n for n in range(total) if (n + 1) % self.every)
        else:
            (below, above), data = self._budget(split, total), self.needed(sample)
            if self.by == "search":
                stay = _searched(model, data, below, above, self.examples)
            elif self.steps < 1:
                raise SpecError(f"steps={self.steps}; choose 1 or more")
            else:
                stay = _open_most(model, data, below, above, steps=self.steps, seed=self.seed)
        return KeepLayers(layers=stay)

    def _budget(self, split: int, total: int) -> tuple[int, int]:
        assert self.count is not None
        below = self.below
        if below is None:
            # In proportion, but a side that has layers keeps one.
            most = self.count - (split < total)
            below = max(min(1, split), min(round(self.count * split / total), split, most))
        above, upper = self.count - below, total - split
        if not min(1, split) <= below <= split or not min(1, upper) <= above <= upper:
            raise SpecError(
                f"count={self.count} with {below} below the split, but there are {split} layers below and "
                f"{upper} above; choose numbers that leave one of each"
            )
        return below, above

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The spec with those layers in their order; the split stays between the same ones."""
        total, split = len(spec.layers), spec.split
        if not self.layers:
            raise self.undecided()
        if not set(self.layers) <= set(range(total)):
            raise SpecError(
                f"layers={self.layers}, but there are 0..{total - 1}; name some of those"
            )
        chosen = sorted(set(self.layers))
        below = sum(n < split for n in chosen)
        if below == len(chosen) and split < total:
            raise SpecError(
                f"layers={self.layers} leaves nothing above the split at {split}; keep one from "
                f"{split}..{total - 1}"
            )
        if split and not below:
            raise SpecError(
                f"layers={self.layers} leaves nothing below the split at {split}; keep one from "
                f"0..{split - 1}, or unsplit the model first"
            )
        return with_layers(spec, [spec.layers[n] for n in chosen], below)


def _searched(
    model: Model, sample: Prepared, below: int, above: int, limit: int
) -> tuple[int, ...]:
    """The subset with the least loss: all of them tried where there are few, else one layer out at a time."""
    total, split = len(model.spec.layers), model.spec.split
    lower = list(combinations(range(split), below))
    upper = list(combinations(range(split, total), above))

    def judge(layers: tuple[int, ...]) -> float:
        return loss_of(apply(model, KeepLayers(layers=layers)), sample, limit=limit)

    if len(lower) * len(upper) <= TRIALS:
        return min(((*a, *b) for a, b in product(lower, upper)), key=judge)
    kept = tuple(range(total))
    while len(kept) > below + above:
        # Only sides that still have too many layers may lose one.
        low = sum(n < split for n in kept)
        loose = [n for n in kept if (low > below if n < split else len(kept) - low > above)]
        kept = min((tuple(n for n in kept if n != out) for out in loose), key=judge)
    return kept


# Learned gates ------------------------------------------------------------------------------------
#
# LayerDrop's third way: gates learn which layers a model can do without, while its weights rest. A gate reads
# the mean of its layer's input. The scores of all layers pass through a softmax, so that they compete for the
# depth there is; a layer is kept with that probability, drawn with a straight-through gradient.


def _open_most(
    model: Model, sample: Prepared, below: int, above: int, *, steps: int, seed: int
) -> tuple[int, ...]:
    """The layers whose gates are open most, so many below and above the split."""
    total, split, device = len(model.spec.layers), model.spec.split, model.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        gates = nn.ModuleList(nn.Linear(model.spec.encoder.width, 1) for _ in range(total))
    gates.to(device)
    optimiser = torch.optim.Adam(gates.parameters(), lr=RATE)
    draw = torch.Generator().manual_seed(seed)
    mean_L = torch.zeros(total, device=device)
    for batch in _repeated(model, sample, steps, seed):
        pooled_LD = _inputs(model, batch, sample)
        scores_L = torch.cat([gate(x) for gate, x in zip(gates, pooled_LD, strict=True)])
        # Keep-probability min(1, L(1-p)·s_d) with s = softmax over layers.
        keep_L = (scores_L.softmax(0) * (below + above)).clamp(max=1.0)
        drawn_L = (torch.rand(total, generator=draw).to(device) < keep_L).to(keep_L.dtype)
        # Straight-through: the forward pass uses the draw, the gradient that of the probability.
        loss = _gated_loss(model, batch, sample, drawn_L + keep_L - keep_L.detach())
        grads = torch.autograd.grad(loss, list(gates.parameters()))
        for parameter, gradient in zip(gates.parameters(), grads, strict=True):
            parameter.grad = gradient
        optimiser.step()
        mean_L = DECAY * mean_L + (1 - DECAY) * keep_L.detach()
    order = mean_L.argsort(descending=True, stable=True).tolist()
    low = [n for n in order if n < split][:below]
    return tuple(sorted(low + [n for n in order if n >= split][:above]))


def _repeated(model: Model, sample: Prepared, steps: int, seed: int) -> Iterator[Batch]:
    """Batches of the sample, again from its start when it ends."""
    epochs = (sample_batches(sample, model, seed=seed + epoch) for epoch in count())
    for done, batch in enumerate(chain.from_iterable(epochs)):
        if done == steps:
            return
        yield batch


@torch.no_grad()
def _inputs(model: Model, batch: Batch, sample: Prepared) -> Tensor:
    """`[L,D]` mean input of each layer; layers that read both texts on their own have the sum of two."""
    inputs = torch.zeros(len(model.spec.layers), model.spec.encoder.width, device=model.device)

    def read(context: Context, x_BTD: Tensor, run: Run) -> Tensor:
        real = context.frame.real_BT[..., None].to(x_BTD.dtype)
        read_BTD = x_BTD[..., -inputs.shape[1] :]  # of two streams, the second
        inputs[context.number] += ((read_BTD * real).sum(1) / real.sum(1).clamp(min=1)).mean(0)
        return run(context, x_BTD)

    with model.net.eval().stack.hook(read):
        forward_pair(model.net, batch, sample.task.head)
    return inputs


def _gated_loss(model: Model, batch: Batch, sample: Prepared, gate_L: Tensor) -> Tensor:
    def pass_through(context: Context, x_BTD: Tensor, run: Run) -> Tensor:
        before = take(x_BTD, context.rows)
        return before + gate_L[context.number] * (run(context, x_BTD) - before)

    with model.net.stack.hook(pass_through):
        return batch_loss(model.net, batch, sample)
