"""Normalisation."""

from __future__ import annotations

from dataclasses import dataclass

from decoupled.model.parts.linear import Tensors, TensorSpec


@dataclass(frozen=True, kw_only=True)
class NormSpec:
    """Layer normalisation."""

    eps: float = 1e-12
    bias: bool = True

    def tensors(self, name: str, width: int) -> Tensors:
        """Its weight, and its bias where it has one."""
        ends = ("weight", "bias") if self.bias else ("weight",)
        return {f"{name}.{end}": TensorSpec((width,)) for end in ends}
