"""Hops between linked passages (Zhao et al., 2020), for answers that need more than one."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from decoupled.errors import SpecError
from decoupled.methods.hop.part import Hop
from decoupled.methods.method import Method, Weights, with_layers
from decoupled.model.parts.layer import Block
from decoupled.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class AddHops(Method):
    """Cross layers but the last let linked passages tell each other; it starts as no change."""

    name: ClassVar[str] = "hop"

    heads: int = 12
    seed: int = 0

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Add a hop after every cross layer but the last, whose passage rows nothing would read any more."""
        layers = list(spec.layers)
        if any(block.part.kind == "hop" for block in spec.encoder.blocks):
            raise SpecError("the model has hops already; leave the method out")
        chosen = range(spec.split, len(layers) - 1)
        if not chosen:
            raise SpecError(
                f"split={spec.split} of {len(layers)} leaves no cross layer before the last for hops; "
                "split lower"
            )
        for n in chosen:
            block = Block(name="hop", part=Hop(heads=self.heads), slot=n, norm=None)
            layers[n] = replace(layers[n], more=(*layers[n].more, block))
        return with_layers(spec, layers)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Random maps for queries, keys and values, and a mix `[I; 0]` that takes nothing from them yet."""
        tensors, width = dict(weights), after.encoder.width
        draw = torch.Generator().manual_seed(self.seed)
        for block in after.encoder.blocks:
            if block.part.kind == "hop":
                for name, tensor in block.tensors(width).items():
                    tensors[name] = torch.randn(tensor.shape, generator=draw) * 0.02
                tensors[f"{block.prefix}mix.weight"] = torch.eye(width, 2 * width)
                tensors[f"{block.prefix}mix.bias"] = torch.zeros(width)
        return tensors
