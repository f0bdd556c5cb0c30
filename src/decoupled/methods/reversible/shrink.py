"""Reversible layers (Kitaev et al., 2020): their inputs are computed back from their outputs."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from decoupled.errors import SpecError
from decoupled.methods.method import Method, Weights, with_layers
from decoupled.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Reversible(Method):
    """Two streams whose inputs are computed back from their outputs: memory does not grow with depth."""

    name: ClassVar[str] = "reversible"

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Layers that normalise first, and a norm after the last."""
        if all(layer.reversible for layer in spec.layers):
            raise SpecError("all layers are reversible already; leave the method out")
        layers = [replace(layer, order="pre", reversible=True) for layer in spec.layers]
        final = spec.encoder.final_norm or spec.layers[-1].norm
        spec = replace(spec, encoder=replace(spec.encoder, final_norm=final))
        return with_layers(spec, layers)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Keep the blocks, and add a final norm with weight 1 and bias 0 where there was none."""
        final, width = after.encoder.final_norm, after.encoder.width
        if final is None or before.encoder.final_norm is not None:
            return weights
        moved = dict(weights)
        for name, tensor in final.tensors("stack.norm", width).items():
            ones = name.endswith("weight")
            moved[name] = torch.full(tensor.shape, float(ones))
        return moved
