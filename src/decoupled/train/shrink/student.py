"""A smaller model that learns from the whole one: a distilled student, or a successor module by module."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from decoupled.errors import InputError, SpecError
from decoupled.model.nn.block import Context
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.nn.frame import ALL
from decoupled.model.nn.stack import Run
from decoupled.model.parts.layer import LayerSpec, in_slot
from decoupled.model.parts.linear import WHOLE
from decoupled.model.spec import ModelSpec
from decoupled.train.shrink.base import BeforeSteps, Method, Weights, check_count, with_layers
from decoupled.train.shrink.linear import in_layers


@dataclass(frozen=True, kw_only=True)
class Student(Method):
    """Another depth or width of the same family. What has the same shape is copied, the rest starts anew.

    Train it: `shrink` with a recipe distils the model it was made from into it.
    """

    name: ClassVar[str] = "student"
    by_training: ClassVar[bool] = True

    layers: int | None = None
    width: int | None = None
    """Of the states; heads keep their width, so there are fewer of them."""
    ffn: int | None = None
    """Width of the feed-forward maps; by default in proportion to `width`."""
    start: Literal["spread", "first"] = "spread"
    """Copy evenly spaced layers, or the first ones."""
    seed: int = 0

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The student's description."""
        total = len(spec.layers)
        count = total if self.layers is None else self.layers
        check_count(count, total, f"student layers={count}, but there are {total}")
        wide = spec.encoder.width
        width = wide if self.width is None else self.width
        check_count(width, wide, f"student width={width}, but the model is {wide} wide")
        split = round(spec.split * count / total)
        if 0 < spec.split < total:
            if count < 2:
                raise SpecError(
                    f"student layers={count} leaves nothing on one side of the split at {spec.split}; "
                    f"choose 2..{total}"
                )
            split = min(max(1, split), count - 1)
        # Whether passages stay as they are belongs to the place, not to the layer that is copied there.
        passages = [spec.layers[n].passage for n in _spread(total, count)]
        chosen = [self._layer(spec.layers[n], wide, width) for n in self._chosen(total, count)]
        layers = [replace(one.in_slot(n), passage=passages[n]) for n, one in enumerate(chosen)]
        made = with_layers(spec, layers, split)
        if width == wide:
            return made
        embedding = made.encoder.embedding
        if embedding.project == "none":
            if embedding.table is not None or embedding.bits is not None:
                raise SpecError(
                    "a narrower student starts from a plain token table; apply student first"
                )
            embedding = replace(embedding, width=width)
        squeeze = made.projection
        if squeeze is not None and squeeze.width > width:
            raise SpecError(
                f"student width={width} is below the projection's {squeeze.width}; choose "
                f"{squeeze.width}..{wide}"
            )
        vector = made.vector
        if vector is not None:
            deeper = tuple(self._layer(layer, wide, width) for layer in vector.layers)
            vector = replace(vector, layers=deeper)
        encoder = replace(made.encoder, width=width, embedding=embedding)
        return replace(made, encoder=encoder, vector=vector)

    def _chosen(self, total: int, count: int) -> list[int]:
        return list(range(count)) if self.start == "first" else _spread(total, count)

    def _layer(self, layer: LayerSpec, old: int, width: int) -> LayerSpec:
        ffn = self.ffn if self.ffn is not None else max(1, layer.ffn.width * width // old)
        most = layer.ffn.width
        check_count(ffn, most, f"student ffn={ffn}, but the model's is {most}")
        if (width, ffn) == (old, most):
            return layer
        if any(block.linear != WHOLE or not block.part.alike for block in layer.blocks):
            raise SpecError("a narrower student starts from plain layers; apply student first")
        if width % layer.attention.head_width:
            raise SpecError(
                f"student width={width} is no multiple of the head width {layer.attention.head_width}; "
                "choose one that is"
            )
        # Never more heads than there were: some may have been pruned.
        heads = max(1, layer.attention.heads * width // old)
        attention, narrow = layer.attention.keep(range(heads)), layer.ffn.keep(range(ffn))
        return replace(layer, attention=attention, ffn=narrow)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Copies where shapes agree; fresh tensors elsewhere."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            fresh = PairEncoder(after).state_dict()
        chosen = self._chosen(len(before.layers), len(after.layers))
        sources = [before.layers[n] for n in chosen]
        known = in_layers(weights, zip(sources, after.layers, strict=True)).items()
        fits = {n: t for n, t in known if n in fresh and t.shape == fresh[n].shape}
        return fresh | fits


def _spread(total: int, count: int) -> list[int]:
    """The last layer of each of `count` equal parts."""
    return [(place + 1) * total // count - 1 for place in range(count)]


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
        """Probability of replacement at a step."""
        done = step / max(1, self.until * total)
        if done >= 1:
            return 1.0
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
            replaced[:] = (draw.random(count) < rate).tolist()
            if rate > 0 and not any(replaced):
                # A step in which nothing could learn would be lost.
                replaced[int(draw.integers(count))] = True

        def act(context: Context, x_BTD: Tensor, run: Run) -> Tensor:
            if not student.training or replaced[context.number]:
                return run(context, x_BTD)
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
