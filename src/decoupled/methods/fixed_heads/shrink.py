"""Fixed self-attention patterns (Raganato et al., 2020): most heads look where a pattern says.

A fixed head keeps its value and output maps and loses query and key. Which head gets which pattern is decided
by what it looks at already: the assignment with the least distance between its attention and the patterns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.methods import tensors as linear
from decoupled.methods.fixed_heads.module import matrix
from decoupled.methods.fixed_heads.part import PATTERNS, Empty, FixedPatterns, Pattern
from decoupled.methods.importance import LIMIT, sample_batches
from decoupled.methods.method import Method, Weights, with_layers
from decoupled.model.model import Model
from decoupled.model.nn.block import Context
from decoupled.model.nn.stack import Run
from decoupled.model.parts.attention import Attention, SelfAttention
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared
from decoupled.train.loop.forward import forward_pair

SEVEN = PATTERNS[:7]


@dataclass(frozen=True, kw_only=True)
class FixHeads(Method):
    """All heads of a layer but `learned` follow patterns: 7F+1L of eight heads, or 8F with learned=0."""

    name: ClassVar[str] = "fix-heads"

    learned: int = 1
    """Heads of a layer that keep their scores."""
    part: Literal["all", "below", "above"] = "all"
    """The component whose layers are changed."""
    assign: Literal["data", "order"] = "data"
    """Whether patterns are matched to what the heads look at, or given out in order."""
    empty: Empty = "clamp"
    """A pattern that finds no token takes the nearest one, or gives nothing."""

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """Decide which head gets which pattern."""
        spec = model.spec
        linear.need_floats(spec, self.name)
        if self.learned < 0:
            raise SpecError(f"learned={self.learned}; choose 0 or more")
        parts = {"below": spec.layers[: spec.split], "above": spec.layers[spec.split :]}
        layers = parts.get(self.part, spec.layers)
        chosen = dict(sorted({layer.attention_slot: layer.attention for layer in layers}.items()))
        if not chosen:
            raise SpecError(f"part={self.part}: there are no layers there; choose another part")
        for number, kind in chosen.items():
            _patterned(kind, number, (), self.empty)
        data = self.needed(sample) if self.assign == "data" else None
        distances = _distances(model, data, set(chosen)) if data is not None else {}
        names, assigned = PATTERNS if self.learned == 0 else SEVEN, []
        for number, kind in chosen.items():
            supply = [names[i % len(names)] for i in range(kind.heads - self.learned)]
            if not supply:
                raise SpecError(
                    f"slot {number} has {kind.heads} heads and {self.learned} should stay learned; "
                    "choose fewer"
                )
            places = list(enumerate(range(len(supply))))
            if distances:
                # The least total distance; heads that get no pattern stay learned.
                columns = [PATTERNS.index(pattern) for pattern in supply]
                places = linear.assignment(distances[number][:, columns])
            assigned.append(
                (number, tuple((head, supply[place]) for head, place in sorted(places)))
            )
        return SetPatterns(assigned=tuple(assigned), empty=self.empty)


@dataclass(frozen=True, kw_only=True)
class SetPatterns(Method):
    """Exactly these heads under exactly these patterns; fixed heads come first in the new layer."""

    assigned: tuple[tuple[int, tuple[tuple[int, Pattern], ...]], ...]
    """Pairs of head and pattern for each attention slot."""
    empty: Empty = "clamp"

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The spec with fixed heads in the layers of these slots."""
        linear.need_floats(spec, FixHeads.name)
        table, layers = dict(self.assigned), list(spec.layers)
        for n, layer in enumerate(layers):
            if (slot := layer.attention_slot) in table:
                patterns = [pattern for _, pattern in table[slot]]
                fixed = _patterned(layer.attention, slot, patterns, self.empty)
                layers[n] = replace(layer, attention=fixed)
        return with_layers(spec, layers)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Values and outputs in the new order of heads; queries and keys of the learned ones alone."""
        moved, width = dict(weights), after.encoder.width
        old, new = (linear.blocks_of(spec, "attention") for spec in (before, after))
        for number, pairs in self.assigned:
            fixed = [head for head, _ in pairs]
            learned = [h for h in range(old[number].part.units) if h not in fixed]
            # Fixed heads come first in the new layer, so values and outputs are reordered as well.
            moved = linear.keep_units(moved, old[number], width, [*fixed, *learned])
            left = new[number].part.matrices(width)
            places = range(len(fixed), len(fixed + learned))
            scored = linear.rows_of(places, new[number].part.unit_width)
            for name in old[number].part.matrices(width):
                if name not in left or left[name].first:
                    moved = linear.cut(moved, old[number].prefix + name, scored)
        return moved


def _patterned(
    kind: Attention, number: int, patterns: Sequence[Pattern], empty: Empty
) -> Attention:
    if not isinstance(kind, SelfAttention):
        raise SpecError(
            f"fix-heads replaces heads of ordinary attention, and slot {number} has {kind.kind} attention; "
            "leave it out, or choose another part"
        )
    return FixedPatterns(
        heads=kind.heads,
        head_width=kind.head_width,
        patterns=tuple(patterns),
        empty=empty,
        bias=kind.bias,
        window=kind.window,
        rotary=kind.rotary,
    )


@torch.no_grad()
def _distances(model: Model, sample: Prepared, slots: set[int]) -> dict[int, Tensor]:
    """Per slot `[H,patterns]`: mean over real tokens of Σ|attention - pattern|."""
    net, totals = model.net.eval(), dict[int, Tensor]()

    def read(context: Context, x_BTD: Tensor, run: Run) -> Tensor:
        frame, slot = context.frame, context.layer.attention_slot
        if slot in slots:
            read_BTD = x_BTD[..., -model.spec.encoder.width :]  # of two streams, the second
            p_BHTT = net.stack.attending(context).weights(read_BTD, context)
            real = frame.real_BT[:, None].to(p_BHTT.dtype)
            apart = [
                ((p_BHTT - matrix(one, frame)[:, None]).abs().sum(-1) * real).sum((0, 2))
                for one in PATTERNS
            ]
            distance_HP = torch.stack(apart, 1) / frame.real_BT.sum()
            totals[slot] = totals.get(slot, 0) + distance_HP
        return run(context, x_BTD)

    with net.stack.hook(read):
        for batch in sample_batches(sample, model, limit=LIMIT // 8):
            forward_pair(net, batch, sample.task.head)
    return totals
