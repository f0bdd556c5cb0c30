"""Cross-layer sharing (ALBERT): layers of a group use one slot, and its opposite."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.methods.importance import LIMIT, loss_of
from decoupled.methods.method import Method, Weights, apply, check_count, parts_of, with_layers
from decoupled.methods.tensors import assignment, in_layers, keep_units, need_floats, slot
from decoupled.model.model import Model
from decoupled.model.parts.layer import Block
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared


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
        data = self.needed(sample)
        replace(self, start="first").rewrite(model.spec)  # refused before anything is tried
        picks: list[int] = []
        groups = self._groups(model.spec)
        for number, group in enumerate(groups):

            def loss(pick: int, tried: list[list[int]] = groups[: number + 1]) -> float:
                spec = _pointed(model.spec, tried, (*picks, pick), parts_of(self.mode))
                return loss_of(apply(model, _Become(spec=spec)), data, limit=self.examples)

            picks.append(min(group, key=loss))
        return replace(self, start="first", picks=tuple(picks))

    def _groups(self, spec: ModelSpec) -> list[list[int]]:
        count, split, groups = len(spec.layers), spec.split, []
        scopes = [range(split), range(split, count)]
        for layers in filter(len, scopes if self.scope == "component" else [range(count)]):
            size = len(layers)
            problem = f"share groups={self.groups}, but there are {size} layers to group"
            check_count(self.groups, size, problem)
            # Ceilings of n·L/G are where ⌊l·G/L⌋ steps to the next group.
            starts = [-(-n * size // self.groups) for n in range(self.groups + 1)]
            groups += [list(layers[a:b]) for a, b in pairwise(starts)]
        return groups

    def _kept(self, groups: list[list[int]]) -> list[int]:
        if not self.picks:
            return [group[0] for group in groups]
        group_of = {layer: number for number, group in enumerate(groups) for layer in group}
        if [group_of.get(pick) for pick in self.picks] != list(range(len(groups))):
            raise SpecError(f"share picks={self.picks}; give a layer of each group: {groups}")
        return list(self.picks)

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The spec with the same layers and fewer slots."""
        if self.start == "best":
            raise self.undecided()
        if self.start in ("average", "aligned"):
            need_floats(spec, self.name)
        if self.start == "aligned":
            blocks = [layer.block(part) for layer in spec.layers for part in parts_of(self.mode)]
            if any(not block.part.alike or block.linear.rank is not None for block in blocks):
                raise SpecError(
                    "share start=aligned needs whole matrices and learned heads; choose start=average"
                )
        groups = self._groups(spec)
        kept, shared = self._kept(groups), spec
        for part in parts_of(self.mode):
            try:
                shared = _pointed(shared, groups, kept, (part,))
            except SpecError:
                other = "ffn" if part == "attention" else "attention"
                raise SpecError(
                    f"share mode={self.mode}: layers of a group differ in the shape of their {part}, as "
                    "after uneven pruning or in ModernBERT's first layer; choose "
                    f"mode={other}, or more groups"
                ) from None
        return shared

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Keep the slots of the picked layers, or put the mean of a group there."""
        moved, groups = dict(weights), self._groups(before)
        if self.start not in ("average", "aligned"):
            return moved
        for group, kept in zip(groups, self._kept(groups), strict=True):
            for part in parts_of(self.mode):
                blocks = [before.layers[n].block(part) for n in group]
                prefixes = dict.fromkeys(block.prefix for block in blocks)
                first, *others = (slot(weights, prefix) for prefix in prefixes)
                if self.start == "aligned":
                    width = before.encoder.width
                    others = [_matched(other, first, blocks[0], width) for other in others]
                target = before.layers[kept].block(part).prefix
                for name in first:
                    every = torch.stack([source[name] for source in (first, *others)])
                    moved[f"{target}{name}"] = every.mean(0)
        return moved


@dataclass(frozen=True, kw_only=True)
class Untie(Method):
    """Give every layer parameters of its own, equal to those it shared."""

    name: ClassVar[str] = "untie"

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The spec in which layer l uses slot l."""
        layers = [layer.in_slot(number) for number, layer in enumerate(spec.layers)]
        return with_layers(spec, layers)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """A copy of the shared tensors for every layer."""
        return in_layers(weights, zip(before.layers, after.layers, strict=True))


def _pointed(
    spec: ModelSpec, groups: list[list[int]], picks: Sequence[int], parts: tuple[str, ...]
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
class _Become(Method):
    """Becomes a given spec that uses some of the existing slots."""

    spec: ModelSpec

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        return self.spec


def _matched(
    source: dict[str, Tensor], target: dict[str, Tensor], block: Block, width: int
) -> dict[str, Tensor]:
    """The block with its heads (or neurons) in the order that fits another block best."""
    size, matrices = block.part.unit_width, block.part.matrices(width)

    def units(tensors: dict[str, Tensor]) -> Tensor:
        parts = []
        for name, m in matrices.items():
            weight = tensors[f"{name}.weight"]
            parts.append(weight if m.units == "outputs" else weight.T)
            if m.units == "outputs" and m.bias:
                parts.append(tensors[f"{name}.bias"][:, None])
        return torch.cat([x.reshape(-1, size * x.shape[1]) for x in parts], 1)

    # The largest total inner product of matched units is the least total squared distance.
    order = [place for _, place in assignment(-units(target) @ units(source).T)]
    named = {f"{block.prefix}{name}": tensor for name, tensor in source.items()}
    return slot(keep_units(named, block, width, order), block.prefix)
