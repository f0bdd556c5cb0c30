"""The feed-forward block."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.model.nn.block import Context, build_block
from decoupled.model.nn.linear import build_linear, build_norm
from decoupled.model.parts.feed_forward import Activation, FeedForwardSpec
from decoupled.model.parts.layer import Block, LayerSpec
from decoupled.model.parts.norm import NormSpec
from decoupled.model.spec import DropoutSpec

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


@build_block.register(FeedForwardSpec)
class FeedForwardBlock(nn.Module):
    """Linear, activation, linear; dropout, residual and norm."""

    up: nn.Module
    down: nn.Module

    def __init__(
        self, part: FeedForwardSpec, block: Block, *, width: int, dropout: DropoutSpec
    ) -> None:
        super().__init__()
        self.gate: nn.Module | None = None
        for name, m in part.matrices(width).items():
            setattr(self, name, build_linear(block.linear, m.inputs, m.outputs, bias=m.bias))
        self.dropout = nn.Dropout(dropout.hidden)
        self.norm = build_norm(block.norm or NormSpec(), width)

    def forward(self, x_BRD: Tensor, context: Context) -> Tensor:
        """Row by row, so any subset of rows will do; some tokens at a time where the context says so."""
        # Each row depends on itself alone, so chunks give the same numbers with less memory.
        if context.chunk and x_BRD.shape[1] > context.chunk:
            parts = torch.split(x_BRD, context.chunk, 1)
            return torch.cat([self._rows(part, context.layer) for part in parts], 1)
        return self._rows(x_BRD, context.layer)

    def _rows(self, x_BRD: Tensor, spec: LayerSpec) -> Tensor:
        source = self.norm(x_BRD) if spec.order == "pre" else x_BRD
        hidden = ACTIVATIONS[spec.ffn.activation](self.up(source))
        # GeGLU (Shazeer, 2020): act(x W) * (x V).
        if self.gate is not None:
            hidden = hidden * self.gate(source)
        y_BRD = x_BRD + self.dropout(self.down(hidden))
        return self.norm(y_BRD) if spec.order == "post" else y_BRD
