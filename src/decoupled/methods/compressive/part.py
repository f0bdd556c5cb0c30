"""Attention with a memory of the windows before (Compressive Transformer, Rae et al., 2020)."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from decoupled.errors import SpecError
from decoupled.model.jsonable import LATER
from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.linear import LinearSpec, Tensors, TensorSpec
from decoupled.model.parts.part import Matrix

BUCKETS = 16
"""The number of buckets of distances to remembered states, in powers of two."""
Compress = Literal["mean", "max", "conv", "most-used"]
Positions = Literal["buckets", "relative"]
"""How far away the memory is: a bias for each bucket of distances, or Transformer-XL's relative positions."""


@dataclass(frozen=True, kw_only=True)
class Compressive(Attention):
    """Tokens of a window see those of the last windows of their text too, and a few states for older ones.

    A text of one window, as a query is, has nothing to remember: that is scaled dot-product attention.
    """

    alike: ClassVar[bool] = False

    memory: int = 1
    """The number of earlier windows whose states are seen as they are."""
    compressed: int = 1
    """The number of windows before those that are seen compressed."""
    rate: int = 4
    """The number of tokens of each compressed state."""
    compress: Compress = "mean"
    bias: bool = True
    rotary: float | None = None
    stop: bool = field(default=False, metadata=LATER)
    """No gradient flows into what is remembered, as in the paper; only reconstruction teaches `conv` then."""
    positions: Positions = field(default="buckets", metadata=LATER)
    kind: Literal["compressive"] = "compressive"

    def __post_init__(self) -> None:
        if self.relative_positions and self.rotary is not None:
            raise SpecError("rotary layers know distances already; choose positions=buckets")
        if min(self.memory, self.compressed) < 0 or not self.memory + self.compressed:
            raise SpecError(
                f"memory={self.memory} and compressed={self.compressed} windows; choose 0 or more of each, "
                "and 1 or more in all"
            )
        if self.rate < 1:
            raise SpecError(f"rate={self.rate} tokens for a compressed state; choose 1 or more")
        if self.compress == "most-used" and self.compressed and not self.memory:
            raise SpecError(
                "compress=most-used keeps what was looked at while it was in memory, and memory=0; choose "
                "memory=1, or another way to compress"
            )

    @property
    def memory_windows(self) -> int:
        return self.memory + self.compressed

    @property
    def learns(self) -> bool:
        """Whether it has weights that compress."""
        return self.compress == "conv" and self.compressed > 0

    @property
    def relative_positions(self) -> bool:
        return self.positions == "relative"

    def matrices(self, width: int) -> dict[str, Matrix]:
        steps = Matrix(inputs=width, outputs=self.inner, bias=False, reads="table")
        more = {"attention.steps": steps} if self.relative_positions else {}
        return {**self.dot_product(width, bias=self.bias), **more}

    def others(self, width: int) -> Tensors:
        each = TensorSpec((self.heads, self.head_width))
        tensors = {"attention.distance": TensorSpec((self.heads, BUCKETS))}
        if self.relative_positions:
            tensors = {"attention.content": each, "attention.place": each}
        if self.learns:
            tensors["attention.compress.weight"] = TensorSpec((width, self.rate * width))
            tensors["attention.compress.bias"] = TensorSpec((width,))
        return tensors

    def mixing(self, linear: LinearSpec, width: int, rows: int, tokens: int, table: int) -> int:
        """Multiply-adds of a window that has as many windows before it as can be seen."""
        slots = self.compressed * -(-tokens // self.rate)
        seen = tokens * (1 + self.memory) + slots
        compressing = -(-tokens // self.rate) * 2 * linear.macs(width, self.inner) if slots else 0
        compressing += -(-tokens // self.rate) * self.rate * width * width if self.learns else 0
        if self.relative_positions:  # a vector of each distance, and each row by all of them
            steps = tokens - 1 + seen
            compressing += steps * (rows * self.inner + linear.macs(width, self.inner))
        return 2 * rows * seen * self.inner + compressing

    def shape(self) -> Attention:
        # The convolution depends on the rate, everything else of the slot on heads and widths
        # alone.
        if self.learns:
            return replace(self, memory=1, compressed=1, rotary=None)
        return Compressive(
            heads=self.heads, head_width=self.head_width, bias=self.bias, positions=self.positions
        )
