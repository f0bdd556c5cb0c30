"""Cross-layer sharing (ALBERT): layers of a group use one slot, and its opposite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model.model import Model
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared
from decoupled.train.shrink.base import (
    Method,
    Weights,
    apply,
    in_slots,
    needed,
    slot,
    undecided,
    with_layers,
)
from decoupled.train.shrink.maps import need_floats
from decoupled.train.shrink.matching import assignment
from decoupled.train.shrink.measure import LIMIT, loss_of

Part = Literal["attention", "ffn"]


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

    def _parts(self) -> tuple[Part, ...]:
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
        self, weights: Weights, layers: list[LayerSpec], kept: int, part: Part, before: ModelSpec
    ) -> dict[str, Tensor]:
        slots = list(dict.fromkeys(_slot(layer, part) for layer in layers))
        sources = [slot(weights, f"stack.{part}.{number}.") for number in slots]
        if self.start == "aligned":
            sources = [sources[0]] + [
                _matched(other, sources[0], layers[0], part) for other in sources[1:]
            ]
        target = f"stack.{part}.{_slot(before.layers[kept], part)}."
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
        layers = [
            replace(layer, attention_slot=number, ffn_slot=number)
            for number, layer in enumerate(spec.layers)
        ]
        return with_layers(spec, layers)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """A copy for every layer."""
        found = {
            n: t for n, t in weights.items() if not n.startswith(("stack.attention.", "stack.ffn."))
        }
        for number, layer in enumerate(before.layers):
            for part in ("attention", "ffn"):
                source = slot(weights, f"stack.{part}.{_slot(layer, part)}.")
                found |= {f"stack.{part}.{number}.{name}": t for name, t in source.items()}
        return found


def _slot(layer: LayerSpec, part: str) -> int:
    return layer.attention_slot if part == "attention" else layer.ffn_slot


def _pointed(
    spec: ModelSpec,
    groups: Sequence[Sequence[int]],
    picks: Sequence[int],
    parts: tuple[Part, ...],
) -> ModelSpec:
    """The spec in which every layer of a group names the slots of its picked layer."""
    layers = list(spec.layers)
    for group, pick in zip(groups, picks, strict=True):
        to = spec.layers[pick]
        for number in group:
            if "attention" in parts:
                layers[number] = replace(layers[number], attention_slot=to.attention_slot)
            if "ffn" in parts:
                layers[number] = replace(layers[number], ffn_slot=to.ffn_slot)
    return with_layers(spec, layers)


@dataclass(frozen=True, kw_only=True)
class _StandIn(Method):
    """Picked layers in the place of the layers of some groups; the others stay as they are."""

    parts: tuple[Part, ...]
    groups: tuple[tuple[int, ...], ...]
    picks: tuple[int, ...]

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        return _pointed(spec, self.groups, self.picks, self.parts)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        return in_slots(weights, after)


def _need_units(spec: ModelSpec, parts: tuple[Part, ...]) -> None:
    """Raise where heads or neurons cannot be put in another order."""
    for layer in spec.layers:
        fixed = "attention" in parts and isinstance(layer.attention, FixedPatterns)
        thin = [
            layer.attention_maps.rank if p == "attention" else layer.ffn_maps.rank for p in parts
        ]
        if fixed or any(rank is not None for rank in thin):
            raise SpecError(
                "share start=aligned needs whole matrices and learned heads; choose start=average"
            )


def _matched(
    source: dict[str, Tensor], target: dict[str, Tensor], layer: LayerSpec, part: Part
) -> dict[str, Tensor]:
    """The same block with its heads (or neurons) in the order that fits another block best."""
    if part == "attention":
        width = layer.attention.head_width
        rows = [n for n in source if n.startswith("attention.") and ".out." not in n]
        columns = "attention.out.weight"
    else:
        width, columns = 1, "down.weight"
        rows = [n for n in source if n.partition(".")[0] in ("up", "gate")]

    def units(block: dict[str, Tensor]) -> Tensor:
        parts = [block[n].reshape(-1, width, *block[n].shape[1:]).flatten(1) for n in rows]
        return torch.cat([*parts, block[columns].T.reshape(-1, width * len(block[columns]))], 1)

    gain = units(target) @ units(source).T
    order = torch.tensor([place for _, place in assignment(-gain)], device=gain.device)
    index = (order[:, None] * width + torch.arange(width, device=gain.device)).flatten()
    moved = {n: source[n][index] for n in rows} | {columns: source[columns][:, index]}
    return {**source, **moved}
