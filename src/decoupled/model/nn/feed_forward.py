"""The feed-forward block."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.model.nn.context import Context
from decoupled.model.nn.linear import build_linear
from decoupled.model.nn.norm import build_norm
from decoupled.model.parts.feed_forward import Activation
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.spec import DropoutSpec

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class FeedForwardBlock(nn.Module):
    """Linear, activation, linear; dropout, residual and norm."""

    def __init__(self, spec: LayerSpec, *, width: int, dropout: DropoutSpec) -> None:
        super().__init__()
        inner, bias, linear = spec.ffn.width, spec.ffn.bias, spec.ffn_maps
        self.up = build_linear(linear, width, inner, bias=bias)
        self.gate = build_linear(linear, width, inner, bias=bias) if spec.ffn.gated else None
        self.down = build_linear(linear, inner, width, bias=bias)
        self.dropout = nn.Dropout(dropout.hidden)
        self.norm = build_norm(spec.norm, width)

    def forward(self, x_BRD: Tensor, context: Context) -> Tensor:
        """Row by row, so any subset of rows will do; some tokens at a time where the context says so."""
        if context.chunk and x_BRD.shape[1] > context.chunk:
            parts = torch.split(x_BRD, context.chunk, 1)
            return torch.cat([self._rows(part, context.layer) for part in parts], 1)
        return self._rows(x_BRD, context.layer)

    def _rows(self, x_BRD: Tensor, spec: LayerSpec) -> Tensor:
        source = self.norm(x_BRD) if spec.order == "pre" else x_BRD
        hidden = ACTIVATIONS[spec.ffn.activation](self.up(source))
        if self.gate is not None:
            hidden = hidden * self.gate(source)
        y_BRD = x_BRD + self.dropout(self.down(hidden))
        return self.norm(y_BRD) if spec.order == "post" else y_BRD
