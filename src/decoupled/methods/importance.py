"""What methods ask of data: the loss of a model, and what every head and neuron contributes to it.

A head or neuron is judged by the derivative of the loss by a gate on its output (Michel et al., 2019): with a
gate per example the absolute value is taken before the mean over examples. H: heads or neurons of a block.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from decoupled.errors import SpecError
from decoupled.methods.tensors import blocks_of
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.layer import Block
from decoupled.train.data.batches import Batch, Batches
from decoupled.train.data.prepare import Prepared
from decoupled.train.evaluate import How, evaluate_examples
from decoupled.train.loop.forward import forward_pair
from decoupled.train.losses import task_loss
from decoupled.train.recipe import PLAIN, Distillation

BlockName = Literal["attention", "ffn"]
"""The name of the blocks whose heads or neurons are judged."""
LIMIT = 2000
"""The number of groups of pairs that a score is estimated from by default."""
BATCH_TOKENS = 1 << 14
"""Padded tokens of a batch that is read outside of training."""


def sample_batches(
    sample: Prepared, model: Model, *, limit: int | None = None, seed: int = 0
) -> Iterator[Batch]:
    """Batches in an order that the seed decides; at most about `limit` groups of pairs in all."""
    if limit is not None and limit < 1:
        raise SpecError(f"examples={limit}; choose 1 or more")
    model.spec.head(sample.task.head)
    batches = Batches.of(sample.examples(model), model.spec, model.device)
    left = batches.examples.groups if limit is None else limit
    order = []
    for groups in batches.epoch(seed, 0, size=1, tokens=BATCH_TOKENS):
        # The last batch is cut to the limit, so that as many groups are read whatever the batches hold.
        if left > 0:
            order.append(groups[:left])
            left -= len(order[-1])
    for groups, batch in zip(order, batches.walk(order), strict=True):
        yield batch
        if sample.progress is not None:
            sample.progress(len(groups))


def batch_loss(net: PairEncoder, batch: Batch, sample: Prepared) -> Tensor:
    """The task's own loss on a batch of the sample."""
    logits = forward_pair(net, batch, sample.task.head).logits
    return task_loss(sample.task, PLAIN.of(Distillation), logits, batch)


@torch.no_grad()
def loss_of(model: Model, sample: Prepared, *, limit: int = LIMIT) -> float:
    """Mean task loss of a model over the sample, without dropout."""
    total, count = 0.0, 0
    model.net.eval()
    for batch in sample_batches(sample, model, limit=limit):
        groups = len(batch.rows) // batch.per_group
        total += float(batch_loss(model.net, batch, sample)) * groups
        count += groups
    return total / max(1, count)


def score_of(model: Model, sample: Prepared) -> float:
    """The task's metric of a model over the sample, in per cent."""
    scores = evaluate_examples(model.net, sample.examples(model), sample.task, How())
    return scores[sample.task.metric]


@contextmanager
def gated(
    net: PairEncoder, name: BlockName, gate: Callable[[int, Tensor], Tensor]
) -> Iterator[None]:
    """Apply `gate(slot, units[B,R,H,K])`, within the block, before the matrix that joins the units."""
    with ExitStack() as hooks:
        for slot, block in blocks_of(net.spec, name).items():

            def hook(
                _: nn.Module, arguments: tuple[Any, ...], slot: int = slot, b: Block = block
            ) -> Tensor:
                units = arguments[0].unflatten(-1, (-1, b.part.unit_width))
                return gate(slot, units).flatten(-2)

            for matrix, m in block.part.matrices(net.spec.encoder.width).items():
                if m.units == "inputs":
                    module = net.get_submodule(block.prefix + matrix)
                    hooks.callback(module.register_forward_pre_hook(hook).remove)
        yield


@torch.no_grad()
def see_inputs(
    model: Model,
    sample: Prepared,
    modules: Mapping[str, nn.Module],
    see: Callable[[str, Tensor], None],
    *,
    limit: int,
) -> None:
    """Run the model over the sample; `see(name, x)` is called with every input of the named modules."""
    with ExitStack() as hooks:
        for name, module in modules.items():

            def hook(_: nn.Module, arguments: tuple[Any, ...], name: str = name) -> None:
                see(name, arguments[0])

            hooks.callback(module.register_forward_pre_hook(hook).remove)
        for batch in sample_batches(sample, model, limit=limit):
            forward_pair(model.net.eval(), batch, sample.task.head)


def importance(
    model: Model, sample: Prepared, name: BlockName, *, limit: int = LIMIT, seed: int = 0
) -> dict[int, Tensor]:
    """Per slot: E|∂L/∂ξ| `[H]` of every head or neuron, the mean being over groups of pairs."""
    net = model.net.eval()
    totals, count = dict[int, Tensor](), 0
    for batch in sample_batches(sample, model, limit=limit, seed=seed):
        groups = len(batch.rows) // batch.per_group
        for number, gradient_GH in _gate_gradients(net, batch, sample, name, groups).items():
            # I_h = E_x |∂L/∂ξ_h|: the absolute value is taken per example, before the mean.
            totals[number] = totals.get(number, 0) + gradient_GH.abs().sum(0)
        count += groups
    return {number: total / max(1, count) for number, total in totals.items()}


def _gate_gradients(
    net: PairEncoder, batch: Batch, sample: Prepared, name: BlockName, groups: int
) -> dict[int, Tensor]:
    """`[G,H]` per slot: ∂L/∂ξ of each group's own loss, summed over the places that use the slot."""
    gates: list[tuple[int, Tensor]] = []

    def gate(number: int, units_BRHK: Tensor) -> Tensor:
        ones = units_BRHK.new_ones(len(units_BRHK), units_BRHK.shape[2], requires_grad=True)
        gates.append((number, ones))
        return units_BRHK * ones[:, None, :, None]

    with gated(net, name, gate):
        # The loss is a mean over groups, each of which depends on its own gates alone.
        loss = batch_loss(net, batch, sample) * groups
    ones = [one for _, one in gates]
    gradients = torch.autograd.grad(loss, ones, allow_unused=True, materialize_grads=True)
    totals: dict[int, Tensor] = {}
    for (number, _), gradient in zip(gates, gradients, strict=True):
        # A side that a group shares is encoded once; others have a row for each of its pairs.
        own = gradient.view(groups, -1, gradient.shape[1]).sum(1)
        totals[number] = totals.get(number, 0) + own
    return totals


def head_ablation(
    model: Model,
    sample: Prepared,
    score: Callable[[Model, Prepared], float] = score_of,
    *,
    alone: bool = False,
) -> list[dict[str, float]]:
    """The score without each head, and the difference to the whole model; one evaluation per head.

    `alone` keeps each head and leaves out all others of its layer.
    """
    whole = score(model, sample)
    rows = []
    for number, block in blocks_of(model.spec, "attention").items():
        for head in range(block.part.units):

            def gate(at: int, units: Tensor, number: int = number, head: int = head) -> Tensor:
                others = [h for h in range(units.shape[2]) if (h == head) != alone]
                gone = torch.tensor(others, dtype=torch.long, device=units.device)
                return units.index_fill(2, gone, 0) if at == number else units

            with gated(model.net, "attention", gate):
                whole_score = score(model, sample)
            rows.append(
                {"slot": number, "head": head, "score": whole_score, "change": whole_score - whole}
            )
    return rows
