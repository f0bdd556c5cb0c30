"""A smaller model of the same family that learns from the whole one."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from decoupled.errors import SpecError
from decoupled.methods.method import Method, Weights, check_count, with_layers
from decoupled.methods.tensors import in_layers
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.linear import WHOLE
from decoupled.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Student(Method):
    """Another depth or width of the same family. What has the same shape is copied, the rest starts anew.

    Train it: `shrink` with a recipe distils the model it was made from into it.
    """

    name: ClassVar[str] = "student"
    by_training: ClassVar[bool] = True

    layers: int | None = None
    width: int | None = None
    """Width of the states; heads keep their width, so there are fewer of them."""
    ffn: int | None = None
    """Width of the feed-forward maps; by default in proportion to `width`."""
    start: Literal["spread", "first"] = "spread"
    """Whether to copy evenly spaced layers, or the first ones."""
    seed: int = 0

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The spec of the student."""
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
        student = with_layers(spec, layers, split)
        if width == wide:
            return student
        embedding = student.encoder.embedding
        if embedding.project == "none":
            if embedding.table is not None or embedding.bits is not None:
                raise SpecError(
                    "a narrower student starts from a plain token table; apply student first"
                )
            embedding = replace(embedding, width=width)
        projection = student.projection
        if projection is not None and projection.width > width:
            raise SpecError(
                f"student width={width} is below the projection's {projection.width}; choose "
                f"{projection.width}..{wide}"
            )
        vector = student.vector
        if vector is not None:
            deeper = tuple(self._layer(layer, wide, width) for layer in vector.layers)
            vector = replace(vector, layers=deeper)
        encoder = replace(student.encoder, width=width, embedding=embedding)
        return replace(student, encoder=encoder, vector=vector)

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
        copied = in_layers(weights, zip(sources, after.layers, strict=True)).items()
        fits = {n: t for n, t in copied if n in fresh and t.shape == fresh[n].shape}
        return fresh | fits


def _spread(total: int, count: int) -> list[int]:
    """The last layer of each of `count` equal parts."""
    # TinyBERT's uniform map: student layer m stands for teacher layer m·L_t/L_s.
    return [(place + 1) * total // count - 1 for place in range(count)]
