"""Norms as data: their kind, their epsilon, their bias and their tensors."""

from dataclasses import dataclass, field
from typing import Literal

from decoupled.errors import SpecError
from decoupled.model.jsonable import LATER
from decoupled.model.parts.linear import Tensors, TensorSpec


@dataclass(frozen=True, kw_only=True)
class NormSpec:
    """Layer normalisation, or by the root mean square alone."""

    eps: float = 1e-12
    bias: bool = True
    kind: Literal["layer", "rms"] = field(default="layer", metadata=LATER)

    def __post_init__(self) -> None:
        if not 0 < self.eps < 1:
            raise SpecError(f"a norm has eps {self.eps}; expected a number between 0 and 1")

    def tensors(self, name: str, width: int) -> Tensors:
        """Its weight, and its bias where it has one."""
        ends = ("weight", "bias") if self.bias else ("weight",)
        return {f"{name}.{end}": TensorSpec((width,)) for end in ends}
