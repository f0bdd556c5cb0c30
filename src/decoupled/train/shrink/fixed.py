"""Fixed self-attention patterns (Raganato et al., 2020): most heads look where a pattern says.

A fixed head keeps its value and output maps and loses query and key. Which head gets which pattern is decided
by what it looks at already: the assignment with the least distance between its attention and the patterns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model.model import Model
from decoupled.model.nn import patterns
from decoupled.model.nn.patterns import PATTERNS
from decoupled.model.nn.stack import Run, Turn
from decoupled.model.parts.attention import AttentionSpec, SelfAttention
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared
from decoupled.train.forward import attention_scores, forward_pair
from decoupled.train.shrink import maps
from decoupled.train.shrink.base import Method, Weights, needed, undecided, with_layers
from decoupled.train.shrink.heads import attention_slots, rows_of
from decoupled.train.shrink.matching import assignment
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
    empty: Literal["clamp", "zero"] = "clamp"
    """A pattern that finds no token takes the nearest one, or gives nothing."""

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """Give out the patterns."""
        spec = model.spec
        maps.need_floats(spec, self.name)
        if self.learned < 0:
            raise SpecError(f"learned={self.learned}; choose 0 or more")
        chosen = self._slots(spec)
        distances = _distances(model, needed(sample, self)) if self.assign == "data" else {}
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

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Only `fit` knows the patterns."""
        raise undecided(self)

    def _slots(self, spec: ModelSpec) -> dict[int, SelfAttention]:
        layers = {
            "all": spec.layers,
            "below": spec.layers[: spec.split],
            "above": spec.layers[spec.split :],
        }[self.part]
        chosen = {layer.attention_slot for layer in layers}
        if not chosen:
            raise SpecError(f"part={self.part}: there are no layers there; choose another part")
        slots = attention_slots(spec)
        return {number: _plain(slots[number], number) for number in sorted(chosen)}


@dataclass(frozen=True, kw_only=True)
class SetPatterns(Method):
    """Exactly these heads under exactly these patterns; fixed heads come first in the new layer."""

    given: tuple[tuple[int, tuple[tuple[int, Pattern], ...]], ...]
    """Per attention slot: pairs of head and pattern."""
    empty: Literal["clamp", "zero"] = "clamp"

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Layers with fixed heads."""
        maps.need_floats(spec, FixHeads.name)
        table, layers = dict(self.given), []
        for layer in spec.layers:
            if layer.attention_slot in table:
                kind = _plain(layer.attention, layer.attention_slot)
                fixed = FixedPatterns(
                    heads=kind.heads,
                    head_width=kind.head_width,
                    patterns=tuple(pattern for _, pattern in table[layer.attention_slot]),
                    empty=self.empty,
                    bias=kind.bias,
                    window=kind.window,
                    rotary=kind.rotary,
                )
                layer = replace(layer, attention=fixed)
            layers.append(layer)
        return with_layers(spec, layers)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Values and outputs in the new order of heads; queries and keys of the learned ones alone."""
        found, slots = dict(weights), attention_slots(before)
        for number, pairs in self.given:
            kind, block = slots[number], f"stack.attention.{number}.attention."
            fixed = [head for head, _ in pairs]
            learned = [head for head in range(kind.heads) if head not in fixed]
            order = rows_of([*fixed, *learned], kind.head_width)
            found |= maps.outputs(weights, f"{block}value", order)
            found |= maps.inputs(weights, f"{block}out", order)
            for name in (f"{block}query", f"{block}key"):
                if learned:
                    found |= maps.outputs(weights, name, rows_of(learned, kind.head_width))
                else:
                    found = {n: t for n, t in found.items() if not n.startswith(f"{name}.")}
        return found


def _plain(kind: AttentionSpec, number: int) -> SelfAttention:
    if not isinstance(kind, SelfAttention):
        raise SpecError(
            f"fix-heads replaces heads of ordinary attention, and slot {number} has {kind.kind} attention; "
            "leave it out, or choose another part"
        )
    return kind


def _assigned(distance_HP: Tensor, supply: list[Pattern]) -> dict[int, Pattern]:
    """Head to pattern, with the least total distance; heads that get none stay learned."""
    columns = [PATTERNS.index(pattern) for pattern in supply]
    return {head: supply[place] for head, place in assignment(distance_HP[:, columns])}


@torch.no_grad()
def _distances(model: Model, sample: Prepared) -> dict[int, Tensor]:
    """Per slot `[H,patterns]`: mean over real tokens of Σ|attention - pattern|."""
    net, totals = model.net.eval(), dict[int, Tensor]()

    def read(turn: Turn, x_BTD: Tensor, run: Run) -> Tensor:
        frame, layer = turn.frame, net.spec.layers[turn.number]
        kind = layer.attention
        if isinstance(kind, SelfAttention):
            mask = frame.mask(kind.window)
            scores = attention_scores(net, turn.number, x_BTD, frame)
            if mask is not None:
                scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            p_BHTT, real = scores.softmax(-1), frame.real_BT[:, None].to(scores.dtype)
            found = [
                ((p_BHTT - patterns.matrix(one, frame)[:, None]).abs().sum(-1) * real).sum((0, 2))
                for one in PATTERNS
            ]
            distance_HP = torch.stack(found, 1) / frame.real_BT.sum()
            old = totals.get(layer.attention_slot, torch.zeros_like(distance_HP))
            totals[layer.attention_slot] = old + distance_HP
        return run(turn, x_BTD)

    with net.stack.around(read):
        for batch in sample.batches(model, limit=LIMIT // 8):
            forward_pair(net, batch, sample.task.head)
    return totals
