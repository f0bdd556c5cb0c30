"""Distillation: the task's own loss and those against a teacher, weighted as the recipe says."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from decoupled.errors import InputError
from decoupled.model.nn.encoder import PairEncoder
from decoupled.train import losses
from decoupled.train.data.batches import Batch, Batches
from decoupled.train.data.tasks import Task
from decoupled.train.loop.forward import PairOutputs, Pass, forward_pair
from decoupled.train.objectives.base import Objective
from decoupled.train.recipe import Distillation, Recipe
from decoupled.train.targets import Targets, soft_targets


class Distill(Objective):
    """The weighted sum of the recipe's losses; without a teacher, of those on the labels."""

    def __init__(
        self,
        student: PairEncoder,
        task: Task,
        recipe: Recipe,
        *,
        teacher: PairEncoder | None = None,
        batches: Batches | None = None,
    ) -> None:
        settings = recipe.of(Distillation)
        weights = settings.weights
        if student.spec.projection is not None and not weights.reconstruction:
            weights = replace(weights, reconstruction=settings.projection.keep)
        super().__init__(student, task, recipe, teacher=teacher)
        self.settings = replace(settings, weights=weights)
        _check(task, recipe, teacher)
        self._targets: Targets | None = None
        compared = bool(weights.lrs or weights.hidden)
        if teacher is not None:
            teacher.eval()
            # Hidden states would not fit in memory, so a teacher whose layers are compared runs in each step.
            ahead = recipe.watch.cache_targets and weights.guided and not weights.inner
            if batches is not None and ahead:
                self._targets = soft_targets(teacher, batches, task, recipe)
        self._kept = Pass(
            bits=settings.projection.bits,
            hidden=compared,
            input_states=compared and settings.lrs_from == "split",
            scores=bool(weights.attention),
        )
        self.bridge = self._bridge(teacher) if compared else None

    def _bridge(self, teacher: PairEncoder | None) -> nn.Linear | None:
        """A learned map to the width of a wider teacher (TinyBERT's W_h); it is not part of the model."""
        ours = self.student.spec.encoder.width
        theirs = teacher.spec.encoder.width if teacher is not None else ours
        if ours == theirs:
            return None
        # Seeded apart, so that adding the bridge does not change what else is drawn.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.recipe.seed)
            return nn.Linear(ours, theirs, bias=False)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and each loss before its weight, detached."""
        teacher = self._teach(batch)
        student = forward_pair(self.student, batch, self.task.head, how=self._kept)
        parts = self._compare(batch, student, teacher)
        if not parts:
            raise InputError(f"every weight of the recipe {self.recipe.name!r} is 0; raise one")
        weights = self.settings.weights
        total = torch.stack([getattr(weights, name) * value for name, value in parts.items()]).sum()
        return total, {name: value.detach() for name, value in parts.items()}

    @torch.no_grad()
    def _teach(self, batch: Batch) -> PairOutputs | Tensor | None:
        if self._targets is not None:
            return self._targets.of(batch)
        if self.teacher is None or not self.settings.weights.guided:
            return None
        return forward_pair(self.teacher, batch, self.task.head, how=replace(self._kept, bits=None))

    def _compare(
        self, batch: Batch, student: PairOutputs, teacher: PairOutputs | Tensor | None
    ) -> dict[str, Tensor]:
        """The losses by the names of their weights."""
        weights, values, logits = self.settings.weights, dict[str, Tensor](), student.logits
        soft = teacher.logits if isinstance(teacher, PairOutputs) else teacher
        if weights.task:
            values["task"] = losses.task_loss(self.task, self.settings, logits, batch)
        if weights.margin:
            target = losses.grouped(batch.score if soft is None else soft, batch)
            values["margin"] = losses.margin_mse(losses.grouped(logits, batch), target)
        if weights.kd and soft is not None:
            how = self.settings.temperature, self.settings.kl
            values["kd"] = losses.soft_loss(self.task, logits, soft, batch, *how)
        if weights.reconstruction:
            values["reconstruction"] = losses.projection_loss(student.states)
        if isinstance(teacher, PairOutputs):
            values |= self._compare_inner(student, teacher)
        return values

    def _compare_inner(self, student: PairOutputs, teacher: PairOutputs) -> dict[str, Tensor]:
        weights, values = self.settings.weights, dict[str, Tensor]()
        hidden: Sequence[Tensor] = student.hidden
        if self.bridge is not None:
            hidden = [self.bridge(x) for x in hidden]
        if weights.lrs:
            pooled = None
            if student.pooled is not None and teacher.pooled is not None and self.bridge is None:
                pooled = student.pooled, teacher.pooled
            targets = teacher.hidden
            if self.settings.match == "uniform":
                targets = losses.spread(targets, len(hidden))
            reduce = self.settings.lrs_reduce
            values["lrs"] = losses.lrs(hidden, targets, student.moved, pooled, reduce)
        if weights.hidden and hidden and teacher.hidden:
            moved, target = student.moved[-1], teacher.hidden[-1]
            values["hidden"] = losses.state_mse(hidden[-1], target, moved)
        if weights.attention and student.scores and teacher.scores:
            ours, theirs = student.scores[-1], teacher.scores[-1]
            if ours.shape[1] != theirs.shape[1]:
                # Heads of models with more or fewer of them have no partners; their means have.
                ours, theirs = ours.mean(1, keepdim=True), theirs.mean(1, keepdim=True)
            real, moved = student.real, student.moved[-1]
            values["attention"] = losses.attention_mse(ours, theirs, real, moved)
        return values


def _check(task: Task, recipe: Recipe, teacher: PairEncoder | None) -> None:
    """Raise `InputError` where the recipe needs what the task or teacher lacks."""
    weights = recipe.of(Distillation).weights
    if (weights.kd or weights.inner) and teacher is None:
        raise InputError(
            f"the recipe {recipe.name!r} needs a teacher; give one, or use the recipe 'plain'"
        )
    if weights.margin and task.head in ("span", "classes"):
        raise InputError(
            f"weights.margin={weights.margin:g} compares the passages of a query, and the task "
            f"{task.name!r} has pairs on their own; leave it at 0, or use the task 'rank'"
        )


OBJECTIVE = Distill
