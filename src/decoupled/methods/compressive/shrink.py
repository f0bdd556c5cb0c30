"""A memory of the windows before (Rae et al., 2020), for texts of many windows."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from decoupled.errors import SpecError
from decoupled.methods import tensors as linear
from decoupled.methods.compressive.module import FAINT
from decoupled.methods.compressive.part import Compress, Compressive, Positions
from decoupled.methods.method import Method, Weights, with_layers
from decoupled.model.parts.attention import SelfAttention
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Remember(Method):
    """Windows of a long text know those before them: the last as they are, older ones compressed.

    In the input component; windows then follow one another without overlap.
    """

    name: ClassVar[str] = "compressive"

    memory: int = 1
    """The number of earlier windows that are seen as they are."""
    compressed: int = 1
    """The number of windows before those that are seen compressed."""
    rate: int = 4
    """The number of tokens of each compressed state."""
    compress: Compress = "mean"
    stop: bool = True
    """No gradient flows into what is remembered, as in the paper."""
    positions: Positions = "relative"
    """How far away the memory is: Transformer-XL's relative positions, or a bias for buckets of distances."""
    tokens: int | None = None
    """The number of tokens of a window; by default as many as now."""

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The layers below the split, and windows that do not overlap."""
        linear.need_floats(spec, self.name)
        if not spec.split:
            raise SpecError(
                "a joint model (split 0) reads each window with its query, and remembers none; split it first"
            )
        below = tuple(map(self._remembering, spec.layers[: spec.split]))
        if below == spec.layers[: spec.split]:
            kinds = ", ".join(sorted({layer.attention.kind for layer in below}))
            raise SpecError(
                f"compressive gives a memory to ordinary attention over a whole window, and the layers below "
                f"the split have {kinds} attention; leave it out"
            )
        text = spec.text
        tokens, special = (
            self.tokens or text.passage_tokens,
            len(text.passage_prefix + text.passage_suffix),
        )
        if not special < tokens <= text.passage_tokens:
            raise SpecError(
                f"tokens={tokens} of a window; choose {special + 1}..{text.passage_tokens}"
            )
        # Without overlap: a token in two windows would be remembered twice.
        text = replace(text, passage_tokens=tokens, stride=tokens - special)
        return replace(with_layers(spec, (*below, *spec.layers[spec.split :])), text=text)

    def _remembering(self, layer: LayerSpec) -> LayerSpec:
        old = layer.attention
        if not isinstance(old, SelfAttention) or old.window is not None:
            return layer
        kind = Compressive(
            heads=old.heads,
            head_width=old.head_width,
            memory=self.memory,
            compressed=self.compressed,
            rate=self.rate,
            compress=self.compress,
            bias=old.bias,
            rotary=old.rotary,
            stop=self.stop,
            positions="buckets" if old.rotary is not None else self.positions,
        )
        return replace(layer, attention=kind)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Start near the old layer: its own window as before, and a convolution that is a mean."""
        moved, width = dict(weights), after.encoder.width
        for block in after.encoder.blocks:
            if isinstance(block.part, Compressive):
                for name, (shape, _) in block.part.others(width).items():
                    value = FAINT if name.endswith("distance") else 0.0
                    mean = torch.eye(width).repeat(1, self.rate) / self.rate
                    start = mean if name.endswith("compress.weight") else torch.full(shape, value)
                    moved.setdefault(block.prefix + name, start)
                if block.part.relative_positions:
                    steps, rank = f"{block.prefix}attention.steps", block.linear.rank
                    if rank is not None:
                        moved.setdefault(f"{steps}.first.weight", torch.eye(rank, width))
                    name = f"{steps}.weight" if rank is None else f"{steps}.second.weight"
                    moved.setdefault(name, torch.zeros(block.part.inner, rank or width))
        return moved
