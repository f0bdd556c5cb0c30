"""Fixed self-attention patterns (Raganato et al., 2020): most heads look where a pattern says.

A fixed head keeps its value and output maps and loses query and key. Which head gets which pattern is decided
by what it looks at already: the assignment with the least distance between its attention and the patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model.model import Model
from decoupled.model.nn.attention.fixed import matrix
from decoupled.model.nn.context import Context
from decoupled.model.nn.stack import Run
from decoupled.model.parts.attention import PATTERNS, Attention, Empty, Pattern
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared
from decoupled.train.forward import forward_pair
from decoupled.train.shrink import linear
from decoupled.train.shrink.base import Method, Weights, needed, with_layers
from decoupled.train.shrink.heads import attention_slots
from decoupled.train.shrink.linear import assignment
from decoupled.train.shrink.measure import LIMIT

SEVEN = PATTERNS[:7]


@dataclass(frozen=True, kw_only=True)
class FixHeads(Method):
    """All heads of a layer but `learned` follow patterns: 7F+1L of eight heads, or 8F with learned=0."""

    name: ClassVar[str] = "fix-heads"

    learned: int = 1
    """Heads of a layer that keep their scores."""
    part: Literal["all", "below", "above"] = "all"
    """In which component."""
    assign: Literal["data", "order"] = "data"
    """Match patterns to what the heads look at, or give them out in order."""
    empty: Empty = "clamp"
    """A pattern that finds no token takes the nearest one, or gives nothing."""

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """Give out the patterns."""
        spec = model.spec
        linear.need_floats(spec, self.name)
        if self.learned < 0:
            raise SpecError(f"learned={self.learned}; choose 0 or more")
        chosen = self._slots(spec)
        by_data = self.assign == "data"
        distances = _distances(model, needed(sample, self), set(chosen)) if by_data else {}
        given = []
        for number, kind in chosen.items():
            count = kind.heads - self.learned
            if count < 1:
                raise SpecError(
                    f"slot {number} has {kind.heads} heads and {self.learned} should stay learned; "
                    "choose fewer"
                )
            names = PATTERNS if self.learned == 0 else SEVEN
            supply = [names[i % len(names)] for i in range(count)]
            found = _assigned(distances[number], supply) if distances else dict(enumerate(supply))
            given.append((number, tuple(sorted(found.items()))))
        return SetPatterns(given=tuple(given), empty=self.empty)

    def _slots(self, spec: ModelSpec) -> dict[int, Attention]:
        layers = {
            "all": spec.layers,
            "below": spec.layers[: spec.split],
            "above": spec.layers[spec.split :],
        }[self.part]
        chosen = {layer.attention_slot for layer in layers}
        if not chosen:
            raise SpecError(f"part={self.part}: there are no layers there; choose another part")
        slots = attention_slots(spec)
        for number in sorted(chosen):
            _patterned(slots[number], number, (), self.empty)
        return {number: slots[number] for number in sorted(chosen)}


@dataclass(frozen=True, kw_only=True)
class SetPatterns(Method):
    """Exactly these heads under exactly these patterns; fixed heads come first in the new layer."""

    given: tuple[tuple[int, tuple[tuple[int, Pattern], ...]], ...]
    """Per attention slot: pairs of head and pattern."""
    empty: Empty = "clamp"

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Layers with fixed heads."""
        linear.need_floats(spec, FixHeads.name)
        table, layers = dict(self.given), []
        for layer in spec.layers:
            if layer.attention_slot in table:
                given = [pattern for _, pattern in table[layer.attention_slot]]
                fixed = _patterned(layer.attention, layer.attention_slot, given, self.empty)
                layer = replace(layer, attention=fixed)
            layers.append(layer)
        return with_layers(spec, layers)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Values and outputs in the new order of heads; queries and keys of the learned ones alone."""
        found, width = dict(weights), after.encoder.width
        old, new = (linear.blocks_of(spec, "attention") for spec in (before, after))
        for number, pairs in self.given:
            fixed = [head for head, _ in pairs]
            learned = [h for h in range(old[number].part.units) if h not in fixed]
            found = linear.keep_units(found, old[number], width, [*fixed, *learned])
            left = new[number].part.matrices(width)
            places = range(len(fixed), len(fixed + learned))
            scored = linear.rows_of(places, new[number].part.unit_width)
            for name in old[number].part.matrices(width):
                if name not in left or left[name].first:
                    found = linear.cut(found, old[number].prefix + name, scored)
        return found


def _patterned(
    kind: Attention, number: int, patterns: Sequence[Pattern], empty: Empty
) -> Attention:
    found = kind.patterned(patterns, empty)
    if found is None:
        raise SpecError(
            f"fix-heads replaces heads of ordinary attention, and slot {number} has {kind.kind} attention; "
            "leave it out, or choose another part"
        )
    return found


def _assigned(distance_HP: Tensor, supply: list[Pattern]) -> dict[int, Pattern]:
    """Head to pattern, with the least total distance; heads that get none stay learned."""
    columns = [PATTERNS.index(pattern) for pattern in supply]
    return {head: supply[place] for head, place in assignment(distance_HP[:, columns])}


@torch.no_grad()
def _distances(model: Model, sample: Prepared, slots: set[int]) -> dict[int, Tensor]:
    """Per slot `[H,patterns]`: mean over real tokens of Σ|attention - pattern|."""
    net, totals = model.net.eval(), dict[int, Tensor]()

    def read(context: Context, x_BTD: Tensor, run: Run) -> Tensor:
        frame, slot = context.frame, context.layer.attention_slot
        if slot in slots:
            p_BHTT = net.stack.attending(context).weights(x_BTD, context)
            real = frame.real_BT[:, None].to(p_BHTT.dtype)
            apart = [
                ((p_BHTT - matrix(one, frame)[:, None]).abs().sum(-1) * real).sum((0, 2))
                for one in PATTERNS
            ]
            distance_HP = torch.stack(apart, 1) / frame.real_BT.sum()
            totals[slot] = totals.get(slot, torch.zeros_like(distance_HP)) + distance_HP
        return run(context, x_BTD)

    with net.stack.hook(read):
        for batch in sample.batches(model, limit=LIMIT // 8):
            forward_pair(net, batch, sample.task.head)
    return totals
