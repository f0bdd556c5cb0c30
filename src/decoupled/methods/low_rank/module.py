"""A matrix as two factors."""

from dataclasses import replace

from torch import Tensor, nn

from decoupled.model.nn.linear import build_linear
from decoupled.model.parts.linear import LinearSpec


class LowRankLinear(nn.Module):
    """A matrix as the product of two factors, `W ≈ W₂W₁`, with few rows in between."""

    def __init__(self, spec: LinearSpec, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        assert spec.rank is not None
        whole = replace(spec, rank=None)
        self.first = build_linear(whole, inputs, spec.rank, bias=False)
        self.second = build_linear(whole, spec.rank, outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))
