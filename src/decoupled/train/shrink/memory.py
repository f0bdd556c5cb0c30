"""Less memory: chunked feed-forward maps, recomputed activations, layers that need none of them kept."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from decoupled.errors import SpecError
from decoupled.model.nn.block import Context
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.nn.stack import Run
from decoupled.model.spec import ModelSpec
from decoupled.train.shrink.base import BeforeSteps, Method, Weights, with_layers


@dataclass(frozen=True, kw_only=True)
class ChunkFeedForward(Method):
    """Feed-forward maps take so many tokens of each text at a time; every result stays the same."""

    name: ClassVar[str] = "chunk-ffn"

    tokens: int = 128

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The encoder with that chunk."""
        if self.tokens < 1:
            raise SpecError(f"tokens={self.tokens}; choose 1 or more")
        return replace(spec, encoder=replace(spec.encoder, chunk=self.tokens))


@dataclass(frozen=True, kw_only=True)
class CheckpointGradients(Method):
    """While training, keep only the input of each layer and compute the rest again for the gradient."""

    name: ClassVar[str] = "checkpoint-gradients"
    by_training: ClassVar[bool] = True

    @contextmanager
    def hook(self, student: PairEncoder, teacher: PairEncoder | None) -> BeforeSteps:
        """Dropout is the same in both passes."""

        def act(context: Context, x_BTD: Tensor, run: Run) -> Tensor:
            if not student.training:
                return run(context, x_BTD)
            return checkpoint(run, context, x_BTD, use_reentrant=False)

        with student.stack.hook(act):
            yield None


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
        """Blocks keep what they have; a new norm at the end does nothing yet but normalise."""
        final, width = after.encoder.final_norm, after.encoder.width
        if final is None or before.encoder.final_norm is not None:
            return weights
        found = dict(weights)
        for name, tensor in final.tensors("stack.norm", width).items():
            ones = name.endswith("weight")
            found[name] = torch.full(tensor.shape, float(ones))
        return found
