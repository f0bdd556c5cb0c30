"""How the matrices of a block are held: whole, low-rank or quantised; and the tensors that hold them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from decoupled.errors import SpecError


class TensorSpec(NamedTuple):
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: str = "float32"


Tensors: TypeAlias = dict[str, TensorSpec]
"""Shape and type of each tensor, by name."""


@dataclass(frozen=True, kw_only=True)
class LinearSpec:
    """How a matrix is held; by default whole and in floating point."""

    rank: int | None = None
    """Two factors of this rank instead of one matrix."""
    bits: Literal[8, 4] | None = None
    """Weights as integer codes with a scale."""
    group: int = 0
    """Columns that share a scale; 0 is the whole row."""
    inputs: Literal["float", "dynamic", "static"] = "float"
    """What meets the codes: floats, or int8 with a scale per token or one scale fixed beforehand."""

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise SpecError(f"maps of rank {self.rank}; choose 1 or more")
        if self.inputs != "float" and (self.group or self.bits is None):
            raise SpecError(
                f"{self.inputs} integer inputs with bits={self.bits} and group={self.group}; they need "
                "codes with one scale per row: choose group=0, or inputs=float"
            )

    def macs(self, inputs: int, outputs: int) -> int:
        """Multiply-adds of one row; a matrix without outputs is not there."""
        if self.rank is None or not outputs:
            return inputs * outputs
        return self.rank * (inputs + outputs)

    def factors(self, name: str, inputs: int, outputs: int) -> Iterator[tuple[str, int, int]]:
        """Name, inputs and outputs of the matrix, or of both factors."""
        if self.rank is None:
            yield name, inputs, outputs
        else:
            yield f"{name}.first", inputs, self.rank
            yield f"{name}.second", self.rank, outputs

    def tensors(self, name: str, inputs: int, outputs: int, *, bias: bool = True) -> Tensors:
        """The tensors that hold a matrix of that name."""
        tensors: Tensors = {}
        for factor, columns, rows in self.factors(name, inputs, outputs):
            tensors |= self._whole(factor, columns, rows)
        # The bias belongs to the last factor, whose outputs are those of the whole matrix.
        if bias:
            tensors[f"{factor}.bias"] = TensorSpec((outputs,))
        return tensors

    def _whole(self, name: str, inputs: int, outputs: int) -> Tensors:
        if self.bits is None:
            return {f"{name}.weight": TensorSpec((outputs, inputs))}
        # Two 4-bit codes share a byte.
        packed, dtype = (inputs, "int8") if self.bits == 8 else (-(-inputs // 2), "uint8")
        groups = -(-inputs // (self.group or inputs))
        tensors = {
            f"{name}.codes": TensorSpec((outputs, packed), dtype),
            f"{name}.scale_OG": TensorSpec((outputs, groups)),
        }
        if self.inputs == "static":
            tensors[f"{name}.input_scale"] = TensorSpec((1,))
        return tensors


WHOLE = LinearSpec()
