"""BERT-of-Theseus (Xu et al., 2020): a successor that replaces the model module by module."""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from decoupled.errors import InputError, SpecError
from decoupled.methods.method import BeforeSteps, Method, Weights, with_layers
from decoupled.methods.tensors import in_layers
from decoupled.model.nn.block import Context
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.nn.frame import ALL
from decoupled.model.nn.stack import Run
from decoupled.model.parts.layer import in_slot
from decoupled.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Theseus(Method):
    """The first layers, trained while each is at random swapped for the module of the teacher it replaces.

    BERT-of-Theseus (Xu et al., 2020).
    """

    name: ClassVar[str] = "theseus"
    by_training: ClassVar[bool] = True

    layers: int = 3
    """Layers of the successor; each stands for as many of the predecessor's."""
    rate: float = 0.5
    """Probability that a module is replaced: constant, or where the curriculum begins."""
    schedule: Literal["curriculum", "constant"] = "curriculum"
    """The rate rises to 1 on a line, or stays and then jumps to 1."""
    until: float = 0.7
    """Share of the steps after which every module is the successor's."""
    frozen: bool = True
    """Leave embedding and heads as they are; only the successor's layers move."""
    seed: int = 0

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The successor, split where its modules are."""
        total = len(spec.layers)
        if not 1 <= self.layers < total or total % self.layers:
            raise SpecError(
                f"theseus layers={self.layers}, but there are {total} layers; choose a smaller number that "
                "divides it"
            )
        each = total // self.layers
        if spec.split % each:
            raise SpecError(
                f"theseus layers={self.layers} makes modules of {each} layers, and the split at "
                f"{spec.split} cuts one in two; choose other numbers"
            )
        if not 0 < self.rate <= 1 or not 0 < self.until <= 1:
            raise SpecError(
                f"theseus rate={self.rate}, until={self.until}; choose numbers above 0 and up to 1"
            )
        layers = []
        for number, layer in enumerate(spec.layers[: self.layers]):
            # A successor moves passages where a layer of its module does.
            module = spec.layers[number * each : (number + 1) * each]
            moves = any(one.passage == "advance" for one in module)
            passage: Literal["advance", "frozen"] = "advance" if moves else "frozen"
            # Own slots, so that modules that shared parameters may part.
            layers.append(replace(layer.in_slot(number), passage=passage))
        return with_layers(spec, layers, spec.split // each)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """The first layers: the paper found them a better start than the last or evenly spaced ones."""
        return in_layers(weights, zip(before.layers, after.layers, strict=False))

    def trains(self, name: str) -> bool:
        """The successor's layers, and the rest unless it is frozen."""
        return not self.frozen or in_slot(name)

    def share(self, step: int, total: int) -> float:
        """The probability of replacement at a step."""
        done = step / max(1, self.until * total)
        if done >= 1:
            return 1.0
        # p_t = min(1, k·t + b), the curriculum of the paper.
        return self.rate + (1 - self.rate) * done if self.schedule == "curriculum" else self.rate

    @contextmanager
    def hook(self, student: PairEncoder, teacher: PairEncoder | None) -> BeforeSteps:
        """In a training step each module is the successor's or the predecessor's, by one draw."""
        if teacher is None:
            raise InputError("theseus needs the model that is replaced; give it as the teacher")
        count = len(student.spec.layers)
        each = len(teacher.spec.layers) // count
        if count != self.layers or each * student.spec.split != teacher.spec.split:
            raise InputError(
                f"the predecessor is split at {teacher.spec.split} of {len(teacher.spec.layers)} layers and "
                f"the successor at {student.spec.split} of {count}, not of {self.layers}; let no other "
                "method change the depth"
            )
        ours, theirs = student.spec.encoder.width, teacher.spec.encoder.width
        if ours != theirs:
            raise InputError(
                f"the successor is {ours} wide and the predecessor {theirs}, so modules cannot stand in for "
                "each other; let no other method change the width"
            )
        replaced = [True] * count

        def tick(step: int, total: int) -> None:
            draw = np.random.default_rng([self.seed, step])
            rate = self.share(step, total)
            # r_i ~ Bernoulli(p), one draw per module and batch.
            replaced[:] = (draw.random(count) < rate).tolist()
            if rate > 0 and not any(replaced):
                # A step in which nothing could learn would be lost.
                replaced[int(draw.integers(count))] = True

        def act(context: Context, x_BTD: Tensor, run: Run) -> Tensor:
            if not student.training or replaced[context.number]:
                return run(context, x_BTD)
            # The predecessor's layers read their own table of relative positions.
            relative = teacher.stack.relative() if teacher.stack.relative is not None else None
            context = replace(context, relative=relative)
            last = (context.number + 1) * each - 1
            for number in range(last + 1 - each, last + 1):
                rows, layer = context.rows if number == last else ALL, teacher.spec.layers[number]
                step = replace(context, number=number, layer=layer, rows=rows)
                x_BTD = teacher.stack.layer(step, x_BTD)
            return x_BTD

        with student.stack.hook(act):
            yield tick
