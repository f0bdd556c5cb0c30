"""Cross-layer sharing (ALBERT): layers of a group use one slot, and its opposite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model.model import Model
from decoupled.model.parts.layer import Block, LayerSpec
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared
from decoupled.train.shrink.base import (
    Method,
    Weights,
    apply,
    in_layers,
    in_slots,
    needed,
    slot,
    undecided,
    with_layers,
)
from decoupled.train.shrink.linear import assignment, keep_units, need_floats
from decoupled.train.shrink.measure import LIMIT, loss_of


@dataclass(frozen=True, kw_only=True)
class ShareLayers(Method):
    """Layers of a group share attention, feed-forward map, or both; layer l of L is in group ⌊l·G/L⌋."""

    name: ClassVar[str] = "share"

    mode: Literal["all", "attention", "ffn"] = "all"
    groups: int = 1
    """Groups of neighbouring layers, in each scope."""
    scope: Literal["component", "global"] = "component"
    """Share within the input and the cross component, or across the split."""
    start: Literal["average", "aligned", "first", "best"] = "first"
    """The shared layer: mean of the group, mean after matching heads and neurons, its first layer, or
    the one that raises the loss least when it stands in for the others (needs data)."""
    picks: tuple[int, ...] = ()
    """The layer that each group keeps, where it is known."""
    examples: int = LIMIT
    """Groups of pairs that `best` judges each layer by."""

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """For `best`: try every layer of every group."""
        if self.start != "best":
            return self
        found = needed(sample, self)
        replace(self, start="first").rewrite(model.spec)  # refused before anything is tried
        picks: list[int] = []
        groups = self._groups(model.spec)
        for number, group in enumerate(groups):
            trial = {}
            for layer in group:
                stand = _StandIn(
                    parts=self._parts(),
                    groups=tuple(map(tuple, groups[: number + 1])),
                    picks=(*picks, layer),
                )
                trial[layer] = loss_of(apply(model, stand), found, limit=self.examples)
            picks.append(min(trial, key=lambda layer: trial[layer]))
        return replace(self, start="first", picks=tuple(picks))

    def _groups(self, spec: ModelSpec) -> list[list[int]]:
        count, split = len(spec.layers), spec.split
        scopes = (
            [range(split), range(split, count)] if self.scope == "component" else [range(count)]
        )
        made: list[list[int]] = []
        for layers in scopes:
            if not len(layers):
                continue
            if not 1 <= self.groups <= len(layers):
                raise SpecError(
                    f"share groups={self.groups}, but there are {len(layers)} layers to group; "
                    f"choose 1..{len(layers)}"
                )
            groups: list[list[int]] = [[] for _ in range(self.groups)]
            for place, layer in enumerate(layers):
                groups[place * self.groups // len(layers)].append(layer)
            made += groups
        return made

    def _parts(self) -> tuple[str, ...]:
        return ("attention", "ffn") if self.mode == "all" else (self.mode,)

    def _kept(self, groups: list[list[int]]) -> list[int]:
        if self.picks and (
            len(self.picks) != len(groups)
            or any(pick not in group for pick, group in zip(self.picks, groups, strict=True))
        ):
            raise SpecError(f"share picks={self.picks}; give a layer of each group: {groups}")
        return list(self.picks) or [group[0] for group in groups]

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The same layers with fewer slots."""
        if self.start == "best":
            raise undecided(self)
        if self.start in ("average", "aligned"):
            need_floats(spec, self.name)
        if self.start == "aligned":
            _need_units(spec, self._parts())
        groups = self._groups(spec)
        kept, made = self._kept(groups), spec
        for part in self._parts():
            try:
                made = _pointed(made, groups, kept, (part,))
            except SpecError:
                other = "ffn" if part == "attention" else "attention"
                raise SpecError(
                    f"share mode={self.mode}: layers of a group differ in the shape of their {part}, as "
                    "after uneven pruning or in ModernBERT's first layer; choose "
                    f"mode={other}, or more groups"
                ) from None
        return made

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """The kept slots, with means where they were asked for."""
        found = dict(weights)
        if self.start in ("average", "aligned"):
            groups = self._groups(before)
            for group, kept in zip(groups, self._kept(groups), strict=True):
                for part in self._parts():
                    found |= self._mean(
                        weights, [before.layers[n] for n in group], kept, part, before
                    )
        return in_slots(found, after)

    def _mean(
        self,
        weights: Weights,
        layers: list[LayerSpec],
        kept: int,
        part: str,
        before: ModelSpec,
    ) -> dict[str, Tensor]:
        blocks = {layer.block(part).prefix: layer.block(part) for layer in layers}
        sources = [slot(weights, prefix) for prefix in blocks]
        if self.start == "aligned":
            width, block = before.encoder.width, layers[0].block(part)
            sources = [sources[0]] + [
                _matched(other, sources[0], block, width) for other in sources[1:]
            ]
        target = before.layers[kept].block(part).prefix
        return {
            f"{target}{name}": torch.stack([source[name] for source in sources]).mean(0)
            for name in sources[0]
        }


@dataclass(frozen=True, kw_only=True)
class Untie(Method):
    """Give every layer parameters of its own, equal to those it shared."""

    name: ClassVar[str] = "untie"

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Slot l for layer l."""
        layers = [layer.in_slot(number) for number, layer in enumerate(spec.layers)]
        return with_layers(spec, layers)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """A copy for every layer."""
        return in_layers(weights, zip(before.layers, after.layers, strict=True))


def _pointed(
    spec: ModelSpec,
    groups: Sequence[Sequence[int]],
    picks: Sequence[int],
    parts: tuple[str, ...],
) -> ModelSpec:
    """The spec in which every layer of a group names the slots of its picked layer."""
    layers = list(spec.layers)
    for group, pick in zip(groups, picks, strict=True):
        to = spec.layers[pick]
        for number in group:
            own = [replace(layers[number].block(p), slot=to.block(p).slot) for p in parts]
            layers[number] = layers[number].put(*own)
    return with_layers(spec, layers)


@dataclass(frozen=True, kw_only=True)
class _StandIn(Method):
    """Picked layers in the place of the layers of some groups; the others stay as they are."""

    parts: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    picks: tuple[int, ...]

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        return _pointed(spec, self.groups, self.picks, self.parts)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        return in_slots(weights, after)


def _need_units(spec: ModelSpec, parts: tuple[str, ...]) -> None:
    """Raise where heads or neurons cannot be put in another order."""
    blocks = [layer.block(part) for layer in spec.layers for part in parts]
    if any(not block.part.alike or block.linear.rank is not None for block in blocks):
        raise SpecError(
            "share start=aligned needs whole matrices and learned heads; choose start=average"
        )


def _matched(
    source: dict[str, Tensor], target: dict[str, Tensor], block: Block, width: int
) -> dict[str, Tensor]:
    """The same block with its heads (or neurons) in the order that fits another block best."""
    size, matrices = block.part.unit_width, block.part.matrices(width)

    def units(tensors: dict[str, Tensor]) -> Tensor:
        parts = []
        for name, m in matrices.items():
            if m.units == "outputs":
                ends = ("weight", "bias") if m.bias else ("weight",)
                own = [tensors[f"{name}.{end}"] for end in ends]
                parts += [x.reshape(-1, size, *x.shape[1:]).flatten(1) for x in own]
            else:
                x = tensors[f"{name}.weight"]
                parts.append(x.T.reshape(-1, size * len(x)))
        return torch.cat(parts, 1)

    gain = units(target) @ units(source).T
    order = [place for _, place in assignment(-gain)]
    named = {f"{block.prefix}{name}": tensor for name, tensor in source.items()}
    return slot(keep_units(named, block, width, order), block.prefix)
