"""The attention of a decoder such as Llama or Qwen: several heads share their keys and values."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from decoupled.errors import SpecError
from decoupled.model.parts.attention.base import DotProduct
from decoupled.model.parts.linear import Tensors
from decoupled.model.parts.norm import NormSpec
from decoupled.model.parts.part import Matrix


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """Llama 3's slower angles: long waves turn `factor` times slower, those between two bounds partly so."""

    factor: float
    low: float
    high: float
    tokens: int
    """The positions that the angles were first trained on."""

    def slowed(self, turn: Any) -> Any:
        """The angles by which a position turns, as arrays or tensors, with the slow ones slower."""
        turns = self.tokens * turn / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clip(0, 1)
        return turn * kept + turn / self.factor * (1 - kept)


@dataclass(frozen=True, kw_only=True)
class Grouped(DotProduct):
    """Scaled dot products over rotary positions, causal or not; heads share `groups` keys and values."""

    alike: ClassVar[bool] = False

    groups: int
    rotary: float
    scaling: RotaryScaling | None = None
    norm: NormSpec | None = None
    """Norm of each query and key, over the width of a head (Qwen3)."""
    out_bias: bool = False
    causal: bool = True
    kind: Literal["grouped"] = "grouped"

    @property
    def cached_width(self) -> int:
        return 2 * self.groups * self.head_width if self.causal else 0

    def matrices(self, width: int) -> dict[str, Matrix]:
        own = self.dot_product(width, bias=self.bias)
        shared = replace(own["attention.key"], outputs=self.groups * self.head_width)
        out = replace(own["attention.out"], bias=self.out_bias)
        return {**own, "attention.key": shared, "attention.value": shared, "attention.out": out}

    def others(self, width: int) -> Tensors:
        names = ("attention.query_norm", "attention.key_norm") if self.norm else ()
        norms = [self.norm.tensors(name, self.head_width) for name in names if self.norm]
        return {name: tensor for norm in norms for name, tensor in norm.items()}

    def check(self, width: int) -> None:
        if self.groups < 1 or self.heads % self.groups or self.head_width % 2:
            raise SpecError(
                f"{self.heads} heads of width {self.head_width} share {self.groups} keys and values; "
                "expected a number that divides the heads, and an even width"
            )
