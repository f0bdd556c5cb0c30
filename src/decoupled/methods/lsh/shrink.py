"""Hashed attention (Kitaev et al., 2020) in place of full attention, for long windows."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from decoupled.errors import SpecError
from decoupled.methods import tensors as linear
from decoupled.methods.lsh.part import LSH
from decoupled.methods.method import Method, Weights, with_layers
from decoupled.model.parts.attention import SelfAttention
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class HashAttention(Method):
    """Full attention becomes attention within hashed buckets: long texts in less time, no key matrices."""

    name: ClassVar[str] = "lsh"

    rounds: int = 4
    """The number of hashings, each of which may find what others miss."""
    chunk: int = 64
    """Tokens of a chunk; a token sees its own and the two next to it."""
    part: Literal["all", "below", "above"] = "all"
    """The component whose layers are changed."""
    seed: int = 0

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Layers that look at everything hash; those with a window of their own stay as they are."""
        linear.need_floats(spec, self.name)
        within = {"below": range(spec.split), "above": range(spec.split, len(spec.layers))}
        chosen = within.get(self.part, range(len(spec.layers)))
        layers = [
            self._hashed(layer, n) if n in chosen else layer for n, layer in enumerate(spec.layers)
        ]
        if tuple(layers) == spec.layers:
            kinds = ", ".join(sorted({layer.attention.kind for layer in spec.layers}))
            raise SpecError(
                f"lsh replaces ordinary attention over a whole text, and part={self.part} has {kinds} "
                "attention; choose another part, or leave it out"
            )
        if spec.vector is not None and self.part != "above":
            own = tuple(self._hashed(layer, n) for n, layer in enumerate(spec.vector.layers))
            spec = replace(spec, vector=replace(spec.vector, layers=own))
        return with_layers(spec, layers)

    def _hashed(self, layer: LayerSpec, number: int) -> LayerSpec:
        old = layer.attention
        if not isinstance(old, SelfAttention) or old.window is not None:
            return layer
        kind = LSH(
            heads=old.heads,
            head_width=old.head_width,
            rounds=self.rounds,
            chunk=self.chunk,
            # Layers hash by different rotations, so that a miss in one is not a miss in all.
            seed=self.seed + number,
            bias=old.bias,
            rotary=old.rotary,
        )
        return replace(layer, attention=kind)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Drop the key matrices: queries serve as keys."""
        gone = tuple(
            f"{prefix}{new.prefix}attention.key."
            for prefix, stack in before.stacks.items()
            for old, new in zip(stack.blocks, after.stacks[prefix].blocks, strict=True)
            if old.part != new.part
        )
        return {name: tensor for name, tensor in weights.items() if not name.startswith(gone)}
