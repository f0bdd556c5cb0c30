"""The feed-forward part of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from decoupled.model.parts.part import Matrix, Part

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]


@dataclass(frozen=True, kw_only=True)
class FeedForwardSpec(Part):
    """Two matrices with an activation between, gated (GeGLU) or plain. Its units are neurons."""

    rowwise: ClassVar[bool] = True

    width: int
    activation: Activation = "gelu"
    gated: bool = False
    bias: bool = True

    @property
    def kind(self) -> str:
        return "feed-forward"

    @property
    def units(self) -> int:
        return self.width

    def matrices(self, width: int) -> dict[str, Matrix]:
        up = Matrix(inputs=width, outputs=self.width, bias=self.bias)
        down = Matrix(inputs=self.width, outputs=width, bias=self.bias, units="inputs")
        return {"up": up, **({"gate": up} if self.gated else {}), "down": down}

    def keep(self, units: Sequence[int]) -> FeedForwardSpec:
        return replace(self, width=len(units))
