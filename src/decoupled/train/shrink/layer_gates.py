"""Which layers a model can do without, learned by gates while its weights rest (LayerDrop's third way).

A gate reads the mean of its layer's input. The scores of all layers pass through a softmax, so that they
compete for the depth there is; a layer is kept with that probability, drawn with a straight-through gradient.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from decoupled.model.model import Model
from decoupled.model.nn.context import Context
from decoupled.model.nn.frame import take
from decoupled.model.nn.stack import Run
from decoupled.train.data.batches import Batch
from decoupled.train.data.prepare import Prepared
from decoupled.train.forward import forward_pair
from decoupled.train.losses import task_loss
from decoupled.train.recipe import PLAIN

RATE, DECAY = 1e-2, 0.9


def open_most(
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
        keep_L = (scores_L.softmax(0) * (below + above)).clamp(max=1.0)
        drawn_L = (torch.rand(total, generator=draw).to(device) < keep_L).to(keep_L.dtype)
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
    done, epoch = 0, 0
    while done < steps:
        for batch in sample.batches(model, seed=seed + epoch):
            if done == steps:
                return
            yield batch
            done += 1
        epoch += 1


@torch.no_grad()
def _inputs(model: Model, batch: Batch, sample: Prepared) -> Tensor:
    """`[L,D]` mean input of each layer; layers that read both texts on their own have the sum of two."""
    found = torch.zeros(len(model.spec.layers), model.spec.encoder.width, device=model.device)

    def read(context: Context, x_BTD: Tensor, run: Run) -> Tensor:
        real = context.frame.real_BT[..., None].to(x_BTD.dtype)
        found[context.number] += ((x_BTD * real).sum(1) / real.sum(1).clamp(min=1)).mean(0)
        return run(context, x_BTD)

    with model.net.eval().stack.hook(read):
        forward_pair(model.net, batch, sample.task.head)
    return found


def _gated_loss(model: Model, batch: Batch, sample: Prepared, gate_L: Tensor) -> Tensor:
    def pass_through(context: Context, x_BTD: Tensor, run: Run) -> Tensor:
        before = take(x_BTD, context.rows)
        return before + gate_L[context.number] * (run(context, x_BTD) - before)

    with model.net.stack.hook(pass_through):
        logits = forward_pair(model.net, batch, sample.task.head).logits
    return task_loss(sample.task, PLAIN, logits, batch)
