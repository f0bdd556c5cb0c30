"""Linear modules as a spec describes them, and norms; low-rank and quantised ones stand in `methods`."""

from torch import Tensor, nn

from decoupled.model import annex
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.parts.norm import NormSpec


def build_linear(spec: LinearSpec, inputs: int, outputs: int, *, bias: bool = True) -> nn.Module:
    """The one place where the form of a matrix is chosen."""
    if spec.rank is not None:
        build: type[nn.Module] = annex.load("low_rank.module").LowRankLinear
        return build(spec, inputs, outputs, bias=bias)
    if spec.bits is None:
        return nn.Linear(inputs, outputs, bias=bias)
    build = annex.load("quantise.module").QuantisedLinear
    return build(spec, inputs, outputs, bias=bias)


class RMSNorm(nn.RMSNorm):
    """Division by the root mean square, in fp32 whatever the compute type, as decoders are trained."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).to(x.dtype)


def build_norm(spec: NormSpec, width: int) -> nn.Module:
    """A norm as described."""
    if spec.kind == "rms":
        return RMSNorm(width, eps=spec.eps)
    return nn.LayerNorm(width, eps=spec.eps, bias=spec.bias)
