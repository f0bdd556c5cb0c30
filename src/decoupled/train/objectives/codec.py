"""The first phase of compression at the split: the learned projection, before everything is trained."""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from decoupled.errors import InputError
from decoupled.model.nn.encoder import PairEncoder
from decoupled.train import losses
from decoupled.train.data.batches import Batch, Feed
from decoupled.train.data.tasks import Task
from decoupled.train.loop.forward import EVALUATION_TOKENS, Pass, forward_pair
from decoupled.train.loop.loop import Phase
from decoupled.train.objectives.base import Objective
from decoupled.train.recipe import Compression, Recipe

SAMPLE_BATCHES = 8


class CodecObjective(Objective):
    """First phase of compression: the projection alone, on states and cross layers that stand still."""

    def __init__(self, student: PairEncoder, task: Task, recipe: Recipe, how: Compression) -> None:
        super().__init__(student, task, recipe)
        self.how = how
        if student.spec.projection is None:
            raise InputError("the model has no learned projection; add one with `with_projection`")

    def trains(self, name: str) -> bool:
        """Only the parameters of the projection."""
        return name.startswith("projection.")

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and the same under its name."""
        # The states must not change for reasons that are not the projection's, such as dropout.
        self.student.eval()
        passed = forward_pair(self.student, batch, self.task.head, how=Pass(bits=self.how.bits))
        value = losses.projection_loss(passed.states)
        return value, {"reconstruction": value.detach()}


def codec_phase(
    net: PairEncoder, task: Task, recipe: Recipe, how: Compression, batches: Feed
) -> Phase:
    """The first phase of a recipe: with its own rate and length, and without evaluations."""
    # Weight decay would pull the projection away from the principal axes that it starts from.
    optimiser = replace(recipe.optimiser, lr=how.lr, epochs=how.epochs, decay=0.0)
    own = replace(recipe, optimiser=optimiser, watch=replace(recipe.watch, evaluations=0))
    return Phase(
        objective=CodecObjective(net, task, own, how), batches=batches, recipe=own, name="codec"
    )


@torch.no_grad()
def start_projection(net: PairEncoder, batches: Feed, task: Task, seed: int) -> None:
    """Set the projection to the principal axes of some states.

    Of all linear maps of that width this one loses least (the first phase of training tends to it), so the
    phase starts where it would arrive.
    """
    projection = net.spec.projection
    if projection is None:
        return
    width, device = net.spec.encoder.width, batches.device
    total = torch.zeros(width, dtype=torch.float64, device=device)
    square = torch.zeros(width, width, dtype=torch.float64, device=device)
    count = 0
    net.eval()
    order = batches.epoch(seed, 0, size=1, tokens=EVALUATION_TOKENS // 4)[:SAMPLE_BATCHES]
    for batch in batches.walk(order):
        for h, _, real in forward_pair(net, batch, task.head, how=Pass()).states:
            # In double precision: the covariance is a difference of large sums.
            rows = h[real].double()
            total += rows.sum(0)
            square += rows.T @ rows
            count += len(rows)
    mean = total / count
    # Cov = E[x x'] - mean mean'; eigh sorts upwards, so the last columns are the main axes.
    _, axes = torch.linalg.eigh(square / count - torch.outer(mean, mean))
    down = axes[:, -projection.width :].T.float()
    first, last = cast(nn.Linear, net.projection["down"]), cast(nn.Linear, net.projection["up"])
    first.weight.copy_(down)
    # down(x) = A (x - mean), up(z) = A' z + mean.
    first.bias.copy_(-(down @ mean.float()))
    last.weight.copy_(down.T)
    last.bias.copy_(mean.float())


OBJECTIVE = CodecObjective
