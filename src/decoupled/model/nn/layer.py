"""The two halves of a layer, each with its norm and residual, so that either can be shared."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.model.nn.attention import build_attention
from decoupled.model.nn.frame import Frame, Rows, take
from decoupled.model.nn.linear import build_linear
from decoupled.model.parts.feed_forward import Activation
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.norm import NormSpec
from decoupled.model.spec import DropoutSpec

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def build_norm(spec: NormSpec, width: int) -> nn.LayerNorm:
    """A layer norm as described."""
    return nn.LayerNorm(width, eps=spec.eps, bias=spec.bias)


class AttentionBlock(nn.Module):
    """Attention, dropout, residual and norm."""

    def __init__(self, spec: LayerSpec, *, width: int, dropout: DropoutSpec) -> None:
        super().__init__()
        self.attention = build_attention(
            spec.attention, width=width, dropout=dropout.attention, maps=spec.attention_maps
        )
        self.dropout = nn.Dropout(dropout.hidden)
        self.norm = build_norm(spec.norm, width) if spec.attention_norm else nn.Identity()

    def forward(
        self, x_BTD: Tensor, frame: Frame, rows: Rows, spec: LayerSpec, relative: Tensor | None
    ) -> Tensor:
        """The given rows, `[B,R,D]`, after attending to all of `x`."""
        source = self.norm(x_BTD) if spec.order == "pre" else x_BTD
        change = self.dropout(self.attention(source, frame, rows, spec.attention, relative))
        y_BRD = take(x_BTD, rows) + change
        return self.norm(y_BRD) if spec.order == "post" else y_BRD


class FeedForwardBlock(nn.Module):
    """The feed-forward map, dropout, residual and norm."""

    def __init__(self, spec: LayerSpec, *, width: int, dropout: DropoutSpec) -> None:
        super().__init__()
        inner, bias, maps = spec.ffn.width, spec.ffn.bias, spec.ffn_maps
        self.up = build_linear(maps, width, inner, bias=bias)
        self.gate = build_linear(maps, width, inner, bias=bias) if spec.ffn.gated else None
        self.down = build_linear(maps, inner, width, bias=bias)
        self.dropout = nn.Dropout(dropout.hidden)
        self.norm = build_norm(spec.norm, width)

    def forward(self, x_BRD: Tensor, spec: LayerSpec, chunk: int = 0) -> Tensor:
        """Row by row, so any subset of rows will do; `chunk` tokens at a time where that is not 0."""
        if chunk and x_BRD.shape[1] > chunk:
            return torch.cat([self(part, spec) for part in torch.split(x_BRD, chunk, 1)], 1)
        source = self.norm(x_BRD) if spec.order == "pre" else x_BRD
        hidden = ACTIVATIONS[spec.ffn.activation](self.up(source))
        if self.gate is not None:
            hidden = hidden * self.gate(source)
        y_BRD = x_BRD + self.dropout(self.down(hidden))
        return self.norm(y_BRD) if spec.order == "post" else y_BRD
