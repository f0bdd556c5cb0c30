"""DeLighT's attention: one head on the narrow end of a DExTra unit (Mehta et al., 2021)."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from decoupled.methods.group_linear import GroupUnit, expand_and_reduce
from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.linear import LinearSpec, Tensors
from decoupled.model.parts.part import Matrix


@dataclass(frozen=True, kw_only=True)
class Delight(Attention):
    """A DExTra unit narrows tokens to half the width, where one head as wide as that attends."""

    alike: ClassVar[bool] = False

    depth: int = 4
    """The number of group linear layers of the unit."""
    expand: float = 2.0
    """Its widest layer, in multiples of the encoder's width."""
    groups: int = 8
    """The most groups of a layer."""
    kind: Literal["delight"] = "delight"

    def unit(self, width: int) -> GroupUnit:
        """The unit before queries, keys and values."""
        inner = self.inner
        plan = expand_and_reduce(inner, inner, self.expand * width, self.depth, self.groups)
        return GroupUnit(inputs=width, plan=plan)

    def check(self, width: int) -> None:
        self.unit(width)

    def matrices(self, width: int) -> dict[str, Matrix]:
        after = self.dot_product(self.inner)
        out = Matrix(inputs=self.inner, outputs=width, units="inputs")
        return {**self.unit(width).matrices("attention.unit"), **after, "attention.out": out}

    def others(self, width: int) -> Tensors:
        return self.unit(width).others("attention.unit")

    def mixing(self, linear: LinearSpec, width: int, rows: int, tokens: int, table: int) -> int:
        return 2 * rows * tokens * self.inner


def scaled(
    width: int, least: int, most: int, expand: float, layers: int | None = None
) -> list[Delight]:
    """Block-wise scaling: from `least` group layers near the input to `most` near the output, and wider.

    As published there are as many blocks as the deepest has group layers. With `least` above `most` the
    blocks come the other way round.
    """
    if least > most:
        return scaled(width, most, least, expand, layers)[::-1]
    count = most if layers is None else layers
    # g_max = 2^⌈log2(d_m / 32)⌉ of the published configurations.
    groups = 2 ** math.ceil(math.log2(max(2.0, width / 32)))
    widths = []
    for block in range(count):
        share = block / max(1, count - 1)
        # N^b = N_min + (N_max - N_min)·b/(B-1), and m_w^b grows by N_max/N_min - 1 likewise.
        depth = int(least + (most - least) * share)
        wider = round(expand + (most / least - 1) * share, 3)
        widths.append(
            Delight(heads=1, head_width=width // 2, depth=depth, expand=wider, groups=groups)
        )
    return widths
