"""What a step minimises: the weighted sum of the recipe's losses on one batch.

It is a module around the student, so that one call is one forward pass whatever wraps it (mixed precision,
several GPUs). The teacher is held beside it: never trained, never in training mode, never saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from decoupled.errors import InputError
from decoupled.model.nn.encoder import PairEncoder
from decoupled.train.data.batches import Batch
from decoupled.train.data.tasks import Task
from decoupled.train.forward import PairOutputs, Pass, forward_pair
from decoupled.train.objectives import losses
from decoupled.train.objectives.targets import Targets
from decoupled.train.recipe import CodecLoss, Recipe


@dataclass(frozen=True, kw_only=True)
class Guide:
    """What the student imitates: a live teacher, its cached logits, or nothing."""

    teacher: PairEncoder | None = None
    targets: Targets | None = None


class Objective(nn.Module):
    """The loss of a batch, and its parts by name, for a student and perhaps a teacher."""

    def __init__(
        self, student: PairEncoder, task: Task, recipe: Recipe, guide: Guide = Guide()
    ) -> None:
        super().__init__()
        weights = recipe.weights
        guided = weights.kd or weights.lrs or weights.hidden or weights.attention
        if guided and guide.teacher is None and guide.targets is None:
            raise InputError(
                f"the recipe {recipe.name!r} needs a teacher; give one, or use the recipe 'plain'"
            )
        inner = weights.lrs or weights.hidden or weights.attention
        if inner and guide.teacher is None:
            raise InputError(
                f"the recipe {recipe.name!r} compares layers, and cached targets hold logits only; "
                "give the teacher itself"
            )
        if weights.margin and task.head in ("span", "classes"):
            raise InputError(
                f"weights.margin={weights.margin:g} compares the passages of a query, and the task "
                f"{task.name!r} has pairs on their own; leave it at 0, or use the task 'rank'"
            )
        layers = len(student.spec.layers)
        if max(recipe.splits, default=0) > layers:
            raise InputError(
                f"splits={list(recipe.splits)}, but the encoder has {layers} layers; choose 0..{layers}"
            )
        self.student = student
        self.task = task
        self.recipe = recipe
        # A plain tuple, so that the teacher's weights are not this module's.
        self._guide = (guide,)
        self._live = bool(inner) or guide.targets is None
        self.bridge = self._bridge(guide.teacher) if weights.lrs or weights.hidden else None

    def _bridge(self, teacher: PairEncoder | None) -> nn.Linear | None:
        """A learned map to the width of a wider teacher (TinyBERT's W_h); it is not part of the model."""
        ours = self.student.spec.encoder.width
        theirs = teacher.spec.encoder.width if teacher is not None else ours
        if ours == theirs:
            return None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.recipe.seed)
            return nn.Linear(ours, theirs, bias=False)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and each loss before its weight, detached."""
        teacher = self._teach(batch)
        splits = self.splits(batch.number)
        parts: dict[str, Tensor] = {}
        total: Tensor | None = None
        for split in splits:
            found = self._compare(batch, self._run(batch, split), teacher)
            for name, (weight, value) in found.items():
                total = weight * value if total is None else total + weight * value
                parts[name] = parts.get(name, 0.0) + value.detach() / len(splits)
        if total is None:
            raise InputError(f"every weight of the recipe {self.recipe.name!r} is 0; raise one")
        return total / len(splits), parts

    def splits(self, number: int) -> Sequence[int | None]:
        """Which splits step `number` trains: the spec's, or the sandwich of several."""
        choices = sorted(self.recipe.splits)
        if not choices:
            return [None]
        drawn = {choices[0], choices[-1]}
        between = choices[1:-1]
        if between:
            draw = np.random.default_rng([self.recipe.seed, number])
            drawn.add(between[int(draw.integers(len(between)))])
        return sorted(drawn)

    def _run(self, batch: Batch, split: int | None) -> PairOutputs:
        weights = self.recipe.weights
        how = Pass(
            split=split,
            bits=self.recipe.squeeze.bits,
            hidden=bool(weights.lrs or weights.hidden),
            scores=bool(weights.attention),
        )
        return forward_pair(self.student, batch, self.task.head, how)

    @torch.no_grad()
    def _teach(self, batch: Batch) -> PairOutputs | Tensor | None:
        guide, weights = self._guide[0], self.recipe.weights
        if not self._live and guide.targets is not None:
            return guide.targets.of(batch)
        if guide.teacher is None:
            return None
        how = Pass(
            hidden=bool(weights.lrs or weights.hidden),
            scores=bool(weights.attention),
        )
        guide.teacher.eval()
        return forward_pair(guide.teacher, batch, self.task.head, how)

    def _compare(
        self, batch: Batch, student: PairOutputs, teacher: PairOutputs | Tensor | None
    ) -> dict[str, tuple[float, Tensor]]:
        weights, found = self.recipe.weights, {}
        if weights.task:
            value = task_loss(self.task, self.recipe, student.logits, batch)
            found["task"] = (weights.task, value)
        if weights.margin:
            target = teacher.logits if isinstance(teacher, PairOutputs) else teacher
            target = batch.score if target is None else target
            value = losses.margin_mse(_grouped(student.logits, batch), _grouped(target, batch))
            found["margin"] = (weights.margin, value)
        if weights.kd and teacher is not None:
            soft = teacher.logits if isinstance(teacher, PairOutputs) else teacher
            value = soft_loss(self.task, student.logits, soft, batch, self.recipe.temperature)
            found["kd"] = (weights.kd, value)
        if weights.reconstruction:
            value = projection_loss(student.states)
            found["reconstruction"] = (weights.reconstruction, value)
        if isinstance(teacher, PairOutputs):
            found |= self._compare_inner(student, teacher)
        return found

    def _compare_inner(
        self, student: PairOutputs, teacher: PairOutputs
    ) -> dict[str, tuple[float, Tensor]]:
        weights, found, real = self.recipe.weights, {}, student.real
        hidden: Sequence[Tensor] = student.hidden
        if self.bridge is not None:
            hidden = [self.bridge(x) for x in hidden]
        if weights.lrs:
            pooled = None
            if student.pooled is not None and teacher.pooled is not None and self.bridge is None:
                pooled = student.pooled, teacher.pooled
            targets = teacher.hidden
            if self.recipe.match == "uniform":
                targets = losses.spread(targets, len(hidden))
            value = losses.lrs(hidden, targets, student.moved, pooled)
            found["lrs"] = (weights.lrs, value)
        if weights.hidden and hidden and teacher.hidden:
            value = losses.state_mse(hidden[-1], teacher.hidden[-1], student.moved[-1])
            found["hidden"] = (weights.hidden, value)
        if weights.attention and student.scores and teacher.scores:
            ours, theirs = student.scores[-1], teacher.scores[-1]
            if ours.shape[1] != theirs.shape[1]:
                # Heads of models with more or fewer of them have no partners; their means have.
                ours, theirs = ours.mean(1, keepdim=True), theirs.mean(1, keepdim=True)
            if self.recipe.scores == "probabilities":
                ours = losses.attention_probabilities(ours, real)
                theirs = losses.attention_probabilities(theirs, real)
            value = losses.attention_mse(ours, theirs, real, student.moved[-1])
            found["attention"] = (weights.attention, value)
        return found


class CodecObjective(nn.Module):
    """First phase of compression: the projection alone, on states and cross layers that stand still."""

    def __init__(self, student: PairEncoder, task: Task, recipe: Recipe) -> None:
        super().__init__()
        if student.spec.projection is None:
            raise InputError("the model has no learned projection; add one with `with_projection`")
        self.student = student
        self.task = task
        self.loss: CodecLoss = recipe.squeeze.loss
        self.bits = recipe.squeeze.bits

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and the same under its name."""
        how = Pass(bits=self.bits, all_scores=self.loss == "attention")
        # Dropout would make the two passes differ for reasons that are not the projection's.
        self.student.eval()
        restored = forward_pair(self.student, batch, self.task.head, how)
        if self.loss == "reconstruction":
            value = projection_loss(restored.states)
            return value, {"reconstruction": value.detach()}
        with torch.no_grad():
            plain = replace(how, bypass=True, bits=None)
            whole = forward_pair(self.student, batch, self.task.head, plain)
        if self.loss == "attention":
            value = torch.stack(
                [
                    losses.attention_mse(a, b, restored.real, moved)
                    for a, b, moved in zip(
                        restored.scores, whole.scores, restored.moved, strict=True
                    )
                ]
            ).mean()
        else:
            value = logit_margin(self.task, restored.logits, whole.logits, batch)
        return value, {self.loss: value.detach()}


def projection_loss(states: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Mean over the squeezed sides of ‖up(down(h)) - h‖², with h detached (Decoupled Transformer, 4)."""
    if not states:
        raise InputError("a reconstruction needs a learned projection, and the model has none")
    terms = [losses.state_mse(back, h.detach(), real) for h, back, real in states]
    return torch.stack(terms).mean()


def task_loss(task: Task, recipe: Recipe, logits: Tensor, batch: Batch) -> Tensor:
    """The task's own loss on the labels of a batch."""
    if task.head == "span":
        return losses.span_loss(logits, batch.label, batch.span_real, recipe.span)
    if task.head == "classes":
        return losses.class_loss(logits, batch.label[:, 0])
    if task.head == "choice":
        chosen = batch.label[:, 0].view(-1, batch.per_group)
        return losses.choice_loss(_grouped(logits, batch), chosen)
    if recipe.rank == "bce" or batch.per_group == 1:
        return losses.rank_bce(logits[:, 0], batch.label[:, 0])
    if recipe.rank == "margin":
        return losses.margin_mse(_grouped(logits, batch), _grouped(batch.score, batch))
    return losses.rank_listwise(_grouped(logits, batch), _grouped(batch.label[:, 0], batch))


def soft_loss(task: Task, logits: Tensor, soft: Tensor, batch: Batch, temperature: float) -> Tensor:
    """`losses.kd` on the distributions of a task: positions, classes, options, passages, or yes and no."""
    if task.head == "span":
        real = batch.span_real[:, None].expand(-1, 2, -1)
        return losses.kd(logits.transpose(1, 2), soft.transpose(1, 2), temperature, real)
    if task.head == "classes":
        return losses.kd(logits, soft, temperature, None)
    if batch.per_group > 1:
        return losses.kd(_grouped(logits, batch), _grouped(soft, batch), temperature, None)
    return losses.kd(losses.binary(logits[:, 0]), losses.binary(soft[:, 0]), temperature, None)


def logit_margin(task: Task, logits: Tensor, target: Tensor, batch: Batch) -> Tensor:
    """`losses.margin_mse` of the logits: over the positions of a span, the classes, or the group."""
    if task.head == "span":
        real = batch.span_real[..., None]
        both = torch.where(real, logits - target, 0.0).float()
        mean = both.sum(1, keepdim=True) / real.sum(1, keepdim=True)
        return 2 * ((both - mean) * real).square().sum() / real.sum().clamp(min=1)
    if task.head == "classes":
        return losses.margin_mse(logits, target)
    if batch.per_group > 1:
        return losses.margin_mse(_grouped(logits, batch), _grouped(target, batch))
    return losses.margin_mse(logits.T, target.T)


def _grouped(values: Tensor, batch: Batch) -> Tensor:
    """`[G,C]` values of the pairs of each group."""
    return values.reshape(-1, batch.per_group)
