"""Units of group linear layers: what DeFINE and DExTra are made of (Mehta et al., 2020 and 2021).

A group linear layer cuts its input into groups and has a matrix for each: a block-diagonal matrix. Every
layer of a unit but the first also sees what the unit was given, group by group beside the layer before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from decoupled.errors import SpecError
from decoupled.model.parts.feed_forward import Activation
from decoupled.model.parts.linear import WHOLE, Tensors
from decoupled.model.parts.norm import NormSpec
from decoupled.model.parts.part import Matrix

LEAST = 8
"""Widths between the layers are multiples of this, which suits the matrix units of processors."""
NORM = NormSpec(eps=1e-5)
"""The norm of a layer: over the columns of a group, the same for all groups."""


class GroupLayer(NamedTuple):
    """Inputs, what a layer sees of the unit's own input included; outputs; and groups of both."""

    inputs: int
    outputs: int
    groups: int


@dataclass(frozen=True, kw_only=True)
class GroupUnit:
    """Group linear layers between whole ones, of which the last reads the unit's input as well."""

    inputs: int
    plan: tuple[GroupLayer, ...]
    project: bool = True
    """Whether a whole layer comes first, whose output is then the input that the others see again."""
    norm: NormSpec | None = NORM
    shuffle: bool = True
    """Whether groups exchange columns after each group linear layer."""
    activation: Activation = "silu"
    linear_end: bool = False
    """Whether the last layer is a bare matrix."""

    @property
    def inner(self) -> int:
        """The number of columns of the input that its layers see again."""
        return self.plan[0].inputs

    @cached_property
    def layers(self) -> tuple[GroupLayer, ...]:
        """All layers, the whole ones included."""
        outputs = self.plan[-1].outputs
        first = (GroupLayer(self.inputs, self.inner, 1),) if self.project else ()
        return (*first, *self.plan, GroupLayer(outputs + self.inner, outputs, 1))

    def matrices(self, name: str) -> dict[str, Matrix]:
        """Its matrices, by names that begin with `name`."""
        return {
            f"{name}.{n}.groups.{g}": Matrix(
                inputs=layer.inputs // layer.groups,
                outputs=layer.outputs // layer.groups,
                reads="tokens",
            )
            for n, layer in enumerate(self.layers)
            for g in range(layer.groups)
        }

    def others(self, name: str) -> Tensors:
        """The tensors of its norms, by name."""
        tensors: Tensors = {}
        for n, layer in enumerate(self.layers) if self.norm else ():
            tensors |= NORM.tensors(f"{name}.{n}.norm", layer.outputs // layer.groups)
        return tensors

    def tensors(self, name: str) -> Tensors:
        """All its tensors, with whole matrices."""
        tensors = self.others(name)
        for own, m in self.matrices(name).items():
            tensors |= WHOLE.tensors(own, m.inputs, m.outputs)
        return tensors

    def macs(self) -> int:
        """Multiply-adds of one row."""
        return sum(layer.inputs * layer.outputs // layer.groups for layer in self.layers)


def expand_and_reduce(
    inputs: int, outputs: int, widest: float, depth: int, most: int
) -> tuple[GroupLayer, ...]:
    """DExTra: as many layers widen as narrow again; groups are 2, 4, 8… up to `most`, and back."""
    if depth < 2:
        raise SpecError(f"a unit of {depth} group layers; choose 2 or more")
    half = math.ceil(depth / 2)
    groups = [min(2 ** (n + 1), most) for n in range(half)]
    # linspace(in, max, ⌈N/2⌉), then the same widths back; an odd depth has one middle layer.
    step = (widest - inputs) / max(1, half - 1)
    widths = [int(inputs + n * step) for n in range(half)]
    back = slice(depth % 2, None)
    return _layers(
        inputs, [*widths, *widths[::-1][back]][:-1], outputs, [*groups, *groups[::-1][back]]
    )


def expand(
    inputs: int, outputs: int, widest: float, depth: int, most: int, *, halving: bool = False
) -> tuple[GroupLayer, ...]:
    """DeFINE: every layer but the last is wider than the one before; groups fall to 1, again and again.

    `halving` is the paper's formula: max(⌊g_max/2^(l-1)⌋, 1) groups in layer l, which fall once.
    """
    if depth < 2:
        raise SpecError(f"a unit of {depth} group layers; choose 2 or more")
    # Groups count 1, 2, 4 … g_max, start over, and are reversed, so that they fall to 1.
    cycle = most.bit_length()
    groups = [2 ** (n % cycle) for n in range(depth)][::-1]
    if halving:
        groups = [max(most // 2**n, 1) for n in range(depth)]
    step = (widest - inputs) / (depth - 1)
    return _layers(inputs, [int(inputs + n * step) for n in range(1, depth)], outputs, groups)


def _layers(
    inputs: int, widths: Sequence[int], outputs: int, groups: Sequence[int]
) -> tuple[GroupLayer, ...]:
    """Widths rounded up, so that the groups on both sides divide them."""
    many = max(groups)
    if many & (many - 1) or inputs % many or outputs % groups[-1]:
        raise SpecError(
            f"{inputs} columns to {outputs} in up to {many} groups; choose a power of 2 that divides both"
        )
    layers, width_in = [], inputs
    for n, width in enumerate(widths):
        # Both neighbours must divide a width: the groups that write it and those that read it.
        unit = max(groups[n], groups[n + 1], LEAST)
        outer = math.ceil(width / unit) * unit
        layers.append(GroupLayer(width_in, outer, groups[n]))
        width_in = outer + inputs
    return (*layers, GroupLayer(width_in, outputs, groups[-1]))
