"""Attention between the first tokens of linked passages (Transformer-XH)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from decoupled.errors import SpecError
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.parts.part import Matrix, Part


@dataclass(frozen=True, kw_only=True)
class Hop(Part):
    """The first token of each pair reads those of the pairs that it is linked to; no other row changes."""

    alike: ClassVar[bool] = False
    below_split: ClassVar[bool] = False

    heads: int
    kind: Literal["hop"] = "hop"

    @property
    def units(self) -> int:
        return 0

    def check(self, width: int) -> None:
        if self.heads < 1 or width % self.heads:
            raise SpecError(
                f"{self.heads} hop heads do not divide a width of {width}; choose a divisor of it"
            )

    def matrices(self, width: int) -> dict[str, Matrix]:
        look = Matrix(inputs=width, outputs=width, bias=False)
        mix = Matrix(inputs=2 * width, outputs=width)
        return {"query": look, "key": look, "value": look, "mix": mix}

    def macs(
        self, linear: LinearSpec, width: int, *, rows: int, tokens: int, table: int = 0
    ) -> int:
        """Multiply-adds of the first token alone, and of one link."""
        own = sum(linear.macs(m.inputs, m.outputs) for m in self.matrices(width).values())
        return own + 2 * width
