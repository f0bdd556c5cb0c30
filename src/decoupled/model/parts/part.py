"""What a part of a layer answers of itself, whatever its kind: generic code asks it and never matches on it.

A kind is a frozen dataclass with a field `kind`, its tag in JSON, and is known as soon as it is defined. Its
torch module, and what a runtime makes of it, are registered there under the same file name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from typing_extensions import Self

from decoupled.errors import SpecError
from decoupled.model.parts.linear import LinearSpec, Tensors


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A matrix of a part: its shape, what is multiplied by it, and where its units (heads, neurons) lie."""

    inputs: int
    outputs: int
    bias: bool = True
    reads: Literal["rows", "tokens", "table"] = "rows"
    """What is multiplied by it: the computed rows, every token, or the table of relative positions."""
    units: Literal["outputs", "inputs"] = "outputs"
    """The side of the matrix along which units lie one after the other."""
    first: int = 0
    """The first unit that the matrix has columns for; units before it have none."""


class Part(ABC):
    """The arithmetic of a block. Units are what pruning may take: heads or neurons, all of one width."""

    rowwise: ClassVar[bool] = False
    """Whether each row is computed from itself alone."""
    alike: ClassVar[bool] = True
    """Whether units are interchangeable, so that they can be reordered or removed freely."""
    relative: ClassVar[bool] = False
    """Whether it reads the encoder's table of relative positions."""

    reads_source: ClassVar[bool] = False
    """Whether it reads the source of the context, where there is one, instead of the other rows."""

    below_split: ClassVar[bool] = True
    """Whether it can run on one text alone, below the split."""

    @property
    def memory_windows(self) -> int:
        """The number of earlier windows of the same text that it reads."""
        return 0

    @property
    @abstractmethod
    def kind(self) -> str:
        """Its tag: in JSON, and in errors that name it."""

    @property
    @abstractmethod
    def units(self) -> int:
        """The number of units: heads or neurons."""

    @property
    def unit_width(self) -> int:
        """Columns of each unit."""
        return 1

    @abstractmethod
    def matrices(self, width: int) -> Mapping[str, Matrix]:
        """Its matrices, by their names within a slot, in an encoder of that width."""

    def others(self, width: int) -> Tensors:
        """Its tensors that are no matrices, by their names within a slot: norms inside it, kernels."""
        return {}

    def check(self, width: int) -> None:
        """Raise where it does not fit an encoder of that width."""
        return

    def mixing(self, linear: LinearSpec, width: int, rows: int, tokens: int, table: int) -> int:
        """Multiply-adds beside those of its matrices, for `rows` of `tokens`."""
        return 0

    def macs(
        self, linear: LinearSpec, width: int, *, rows: int, tokens: int, table: int = 0
    ) -> int:
        """Multiply-adds of `rows` of `tokens`, with so many rows of relative positions."""
        # Rows of the table are counted by `mixing`, which knows how many of them are used.
        counts = {"rows": rows, "tokens": tokens, "table": 0}
        matrices = sum(
            counts[m.reads] * linear.macs(m.inputs, m.outputs)
            for m in self.matrices(width).values()
        )
        return matrices + self.mixing(linear, width, rows, tokens, table)

    def gathering(self, rows: int, nodes: int) -> int:
        """Multiply-adds beside all these, for a text of whose rows so many are nodes of a tree."""
        return 0

    def shape(self) -> Part:
        """The part without the options in which layers that share a slot may differ."""
        return self

    def keep(self, units: Sequence[int]) -> Self:
        """The part with only these units."""
        raise SpecError(
            f"{self.kind} has no heads or neurons that could be taken out; leave it whole"
        )
