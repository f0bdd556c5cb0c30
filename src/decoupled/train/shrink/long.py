"""Longer windows: more positions, and hashed attention (Kitaev et al., 2020) that can afford them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from decoupled.errors import SpecError
from decoupled.model.parts.attention import SelfAttention
from decoupled.model.parts.attention.lsh import LSH
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.spec import ModelSpec
from decoupled.train.shrink import linear
from decoupled.train.shrink.base import Method, Weights, with_layers


@dataclass(frozen=True, kw_only=True)
class Lengthen(Method):
    """Windows of so many tokens; a table of positions is repeated as often as that needs."""

    name: ClassVar[str] = "lengthen"

    tokens: int = 4096

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Longer windows that overlap as much as before, and rows for their positions."""
        text, encoder, table = spec.text, spec.encoder, spec.encoder.embedding
        if self.tokens <= text.passage_tokens:
            raise SpecError(
                f"tokens={self.tokens}, and windows have {text.passage_tokens} already; choose more"
            )
        stride = text.stride + self.tokens - text.passage_tokens
        text = replace(text, passage_tokens=self.tokens, stride=stride)
        longest = text.query_tokens + self.tokens
        rows = max(table.positions, table.position_start + longest) if table.positions else 0
        encoder = replace(
            encoder,
            embedding=replace(table, positions=rows),
            max_tokens=max(encoder.max_tokens, longest),
        )
        return replace(spec, encoder=encoder, text=text)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Row n of the longer tables is the row of n modulo the length of the old one."""
        old, found = before.encoder.embedding, dict(weights)
        room, rows = old.positions - old.position_start, after.encoder.embedding.positions
        for name in ("embedding.positions.weight", "cross_embedding.positions.weight"):
            if name in found:
                place = torch.arange(rows - old.position_start) % room + old.position_start
                start = found[name][: old.position_start]
                found[name] = torch.cat([start, found[name][place.to(start.device)]])
        return found


@dataclass(frozen=True, kw_only=True)
class HashAttention(Method):
    """Full attention becomes attention within hashed buckets: long texts in less time, no key matrices."""

    name: ClassVar[str] = "lsh"

    rounds: int = 4
    """Hashings, each of which may find what others miss."""
    chunk: int = 64
    """Tokens of a chunk; a token sees its own and the two next to it."""
    part: Literal["all", "below", "above"] = "all"
    """In which component."""
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
            seed=self.seed + number,
            bias=old.bias,
            rotary=old.rotary,
        )
        return replace(layer, attention=kind)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Queries serve as keys; the keys go."""
        gone = tuple(
            f"{prefix}{new.prefix}attention.key."
            for prefix, stack in before.stacks.items()
            for old, new in zip(stack.blocks, after.stacks[prefix].blocks, strict=True)
            if old.part != new.part
        )
        return {name: tensor for name, tensor in weights.items() if not name.startswith(gone)}
