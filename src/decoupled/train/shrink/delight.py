"""DeLighT's layers in place of ordinary ones, to be distilled into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.attention.delight import scaled
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.linear import WHOLE
from decoupled.model.spec import ModelSpec
from decoupled.train.shrink.base import Method, Weights, check_count, with_layers
from decoupled.train.shrink.linear import in_layers, need_floats

WIDE = 16
"""Feed-forward maps are at most so many times as wide as the model."""


def plain_layers(spec: ModelSpec, method: str) -> Sequence[LayerSpec]:
    """The layers, where each has ordinary attention and positions come with the embedding."""
    need_floats(spec, method)
    keyless = any("attention.key" not in one.attention.matrices(1) for one in spec.layers)
    if keyless or any(b.linear != WHOLE or not b.part.alike for b in spec.encoder.blocks):
        raise SpecError(f"{method} starts from plain layers; apply {method} first")
    embedding = spec.encoder.embedding
    if not (embedding.positions or embedding.tokens.placed):
        raise SpecError(
            f"{method} layers take positions from the embedding, and in a {spec.family} encoder they are "
            "in the attention; choose a model with a position table"
        )
    return spec.layers


def fresh(after: ModelSpec, known: Weights, seed: int) -> dict[str, Tensor]:
    """New tensors, and those that are known and of the same shape."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = PairEncoder(after).state_dict()
    fits = {n: t for n, t in known.items() if n in made and t.shape == made[n].shape}
    return made | fits


@dataclass(frozen=True, kw_only=True)
class DelightLayers(Method):
    """DeLighT's layers: group linear layers, one narrow head, a light feed-forward map. They start anew.

    Train it: `shrink` with a recipe distils the model it was made from into it.
    """

    name: ClassVar[str] = "delight"
    by_training: ClassVar[bool] = True

    least: int = 4
    """Group linear layers of the first layer."""
    most: int = 8
    """Of the last layer; those between lie on a line. Fewer than `least` turns the order round."""
    expand: float = 2.0
    """Widest group linear layer of the shallowest layer, in multiples of the width; deeper ones are wider."""
    ffn: int | None = None
    """Width of the feed-forward maps; by default a quarter of the model's."""
    seed: int = 0

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Layers of that kind in place of each."""
        width, layers = spec.encoder.width, plain_layers(spec, self.name)
        if min(self.least, self.most) < 2 or self.expand < 1:
            raise SpecError(
                f"least={self.least}, most={self.most}, expand={self.expand}; choose 2 or more layers and "
                "an expansion of 1 or more"
            )
        ffn = max(1, width // 4) if self.ffn is None else self.ffn
        check_count(ffn, WIDE * width, f"ffn={ffn}")
        kinds = scaled(width, self.least, self.most, self.expand, len(layers))
        light = [replace(layer.ffn, width=ffn, activation="silu") for layer in layers]
        return with_layers(
            spec,
            [
                replace(layer.in_slot(n), attention=kind, ffn=light[n])
                for n, (layer, kind) in enumerate(zip(layers, kinds, strict=True))
            ],
        )

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Norms, embedding and heads as they were."""
        known = in_layers(weights, zip(before.layers, after.layers, strict=True))
        return fresh(after, known, self.seed)
