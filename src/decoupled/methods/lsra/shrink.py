"""Lite Transformer's layers in place of ordinary ones, to be distilled into."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.methods.fresh import fresh, plain_layers
from decoupled.methods.lsra.part import LongShort
from decoupled.methods.method import Method, Weights, check_count, with_layers
from decoupled.methods.tensors import in_layers, keep_units, slot
from decoupled.model.parts.layer import Block
from decoupled.model.spec import ModelSpec

OPEN = 2.0
"""Bias of the gates at the start: nine tenths pass."""


@dataclass(frozen=True, kw_only=True)
class LongShortLayers(Method):
    """Lite Transformer's layers: half of the columns attend, half are convolved; a flat feed-forward map.

    Half of the heads stay on half of the columns; the values of the others meet neighbours only.
    """

    name: ClassVar[str] = "lsra"
    by_training: ClassVar[bool] = True

    sizes: tuple[int, ...] = (3, 7, 15, 31, 31, 31)
    """Tokens that the kernels see, from the first layers to the last."""
    kernels: int = 4
    """The number of kernels of a layer."""
    dynamic: bool = True
    """Each token makes its own kernels, or they are the same for all."""
    gated: bool = True
    """Gate what is convolved."""
    ffn: int | None = None
    """Width of the feed-forward maps; by default the model's own, the largest neurons staying."""
    seed: int = 0

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The spec with a Lite Transformer layer in place of each layer."""
        layers, light = plain_layers(spec, self.name), []
        if not self.sizes:
            raise SpecError("sizes=none; give the tokens that a kernel sees, such as 3/7/15")
        for n, layer in enumerate(layers):
            most = layer.ffn.width
            ffn = min(spec.encoder.width, most) if self.ffn is None else self.ffn
            check_count(ffn, most, f"ffn={ffn}, but the model's is {most}")
            attention = LongShort(
                heads=max(1, layer.attention.heads // 2),
                head_width=layer.attention.head_width,
                kernel=self.sizes[n * len(self.sizes) // len(layers)],
                kernels=self.kernels,
                dynamic=self.dynamic,
                gated=self.gated,
            )
            narrow = layer.ffn.keep(range(ffn))
            light.append(replace(layer.in_slot(n), attention=attention, ffn=narrow))
        return with_layers(spec, light)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Heads and neurons that stay; new tensors elsewhere."""
        copied = in_layers(weights, zip(before.layers, after.layers, strict=True))
        width = after.encoder.width
        for old, new in zip(before.layers, after.layers, strict=True):
            flat = replace(old.block("ffn"), slot=new.ffn_slot)
            copied = keep_units(copied, flat, width, _largest(copied, flat, new.ffn.width))
            copied |= _halves(weights, old.block("attention"), new.block("attention"), width)
        return fresh(after, copied, self.seed)


def _largest(weights: Weights, block: Block, count: int) -> list[int]:
    """The neurons with the largest product of what enters and what leaves them."""
    up, down = (weights[f"{block.prefix}{name}.weight"] for name in ("up", "down"))
    size = up.norm(dim=1) * down.norm(dim=0)
    return sorted(size.argsort(descending=True)[:count].tolist())


def _halves(weights: Weights, old: Block, new: Block, width: int) -> dict[str, Tensor]:
    """The first heads on the first half of the columns; values and outputs of the others on the second."""
    kind, half, source = new.part, width // 2, slot(weights, f"{old.prefix}attention.")
    assert isinstance(kind, LongShort)
    inner, halves = kind.inner, dict[str, Tensor]()
    for name in ("query", "key", "value"):
        halves[f"{name}.weight"] = source[f"{name}.weight"][:inner, :half]
        halves[f"{name}.bias"] = source[f"{name}.bias"][:inner]
    halves["out.weight"] = source["out.weight"][:half, :inner]
    halves["out.bias"] = source["out.bias"][:half]
    value, bias = source["value.weight"][inner:, half:], source["value.bias"][inner:]
    if len(bias) == half:  # not where heads were pruned
        if kind.gated:
            # sigmoid(2) passes 0.88, so the values are scaled up to come out as they were.
            passed = 1 + math.exp(-OPEN)
            value = torch.cat([value * passed, torch.zeros_like(value)])
            bias = torch.cat([bias * passed, torch.full_like(bias, OPEN)])
        halves |= {"near.weight": value, "near.bias": bias}
        halves["near_out.weight"] = source["out.weight"][half:, inner:]
        halves["near_out.bias"] = source["out.bias"][half:]
    return {f"{new.prefix}attention.{name}": tensor for name, tensor in halves.items()}
