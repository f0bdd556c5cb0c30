"""What every attention module has, the registry of the modules by kind, and the block around them."""

from dataclasses import replace
from functools import singledispatch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.errors import InputError, SpecError
from decoupled.model import annex
from decoupled.model.nn.block import Context, build_block
from decoupled.model.nn.frame import ALL, KeysValues, take
from decoupled.model.nn.linear import build_linear, build_norm
from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.layer import Block
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.spec import DropoutSpec


def hidden(dtype: torch.dtype) -> float:
    """The number added to a score that must not count.

    Not the lowest number there is: a fused kernel scales scores by log2(e), where that one overflows, and of
    a tile with nothing else it makes nan.
    """
    return max(-1e9, torch.finfo(dtype).min)


class AttentionModule(nn.Module):
    """The matrices of a kind of attention; a module adds how its rows are computed.

    `forward(x_BTD, context)` returns `[B,R,D]` for the rows of the context.
    """

    query: nn.Module
    key: nn.Module
    value: nn.Module
    out: nn.Module

    def __init__(
        self, kind: Attention, *, width: int, dropout: float, linear: LinearSpec = LinearSpec()
    ) -> None:
        super().__init__()
        self.heads = kind.heads
        self.head_width = kind.head_width
        self.dropout = dropout
        for name, m in kind.matrices(width).items():
            own = name.removeprefix("attention.")
            if "." not in own:  # those of units within are theirs to build
                self.add_module(own, build_linear(linear, m.inputs, m.outputs, bias=m.bias))

    def split_heads(self, x_BTD: Tensor) -> Tensor:
        """`[B,T,H·K]` to `[B,H,T,K]`."""
        # [B,T,H·K] -> [B,T,H,K] -> [B,H,T,K]
        return x_BTD.view(*x_BTD.shape[:2], -1, self.head_width).transpose(1, 2)

    def attend(
        self,
        q_BHRK: Tensor,
        k_BHTK: Tensor,
        v_BHTK: Tensor,
        mask: Tensor | None,
        scale: float | None = None,
    ) -> Tensor:
        """Softmax attention, `[B,H,R,K]`."""
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(
            q_BHRK, k_BHTK, v_BHTK, attn_mask=mask, dropout_p=dropout, scale=scale
        )

    def join(self, y_BHRK: Tensor) -> Tensor:
        """The heads through the output matrix, `[B,R,D]`."""
        # [B,H,R,K] -> [B,R,H,K] -> [B,R,H·K]
        return self.out(y_BHRK.transpose(1, 2).flatten(2))

    def mask(self, context: Context) -> Tensor | None:
        """`[B,1,R|1,T]` mask, true where the rows of the context may look; None when they see every token."""
        return self.rows_of(context.frame.mask(None), context)

    def rows_of(self, mask: Tensor | None, context: Context) -> Tensor | None:
        """The rows of a mask that the context computes; a mask of one row for all stays as it is."""
        return mask if mask is None or mask.shape[2] == 1 else take(mask, context.rows, 2)

    def keys_and_values(self, x_BTD: Tensor, context: Context) -> KeysValues:
        """Keys and values of every row, which rows of a text that comes after may read."""
        raise SpecError(f"{context.layer.attention.kind} attention has no keys that can be stored")

    def scores(self, x_BTD: Tensor, context: Context) -> Tensor:
        """`[B,H,T,T]` scores before mask and softmax; `InputError` where a kind has no scores."""
        kind = context.layer.attention.kind
        raise InputError(
            f"layer {context.number} has {kind} attention, and so no scores to compare; train with "
            "weights.attention=0"
        )


@singledispatch
def build_attention(
    kind: Attention, *, width: int, dropout: float, linear: LinearSpec
) -> AttentionModule:
    """The module of a kind of attention: what its file registered here."""
    if annex.registers(build_attention, kind, "module"):
        return build_attention(kind, width=width, dropout=dropout, linear=linear)
    raise SpecError(f"{kind.kind} attention has no torch module; register one in build_attention")


@build_block.register(Attention)
class AttentionBlock(nn.Module):
    """Attention, dropout, residual and norm."""

    def __init__(self, part: Attention, block: Block, *, width: int, dropout: DropoutSpec) -> None:
        super().__init__()
        self.attention = build_attention(
            part, width=width, dropout=dropout.attention, linear=block.linear
        )
        self.dropout = nn.Dropout(dropout.hidden)
        self.norm = build_norm(block.norm, width) if block.norm else nn.Identity()

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """The rows of the context, `[B,R,D]`, after attending to all of `x`."""
        change = self.dropout(self.attention(self._source(x_BTD, context), context))
        # The residual adds to the rows that are computed, which may be fewer than those attended
        # to.
        y_BRD = take(x_BTD, context.rows) + change
        return self.norm(y_BRD) if context.layer.order == "post" else y_BRD

    def scores(self, x_BTD: Tensor, context: Context) -> Tensor:
        """`[B,H,T,T]` scores of every row, before the mask and the softmax, of the heads that have some."""
        context = replace(context, rows=ALL)
        return self.attention.scores(self._source(x_BTD, context), context)

    def cached(self, x_BTD: Tensor, context: Context) -> Tensor:
        """`[B,T,2·G·K]` keys, then values, of every row of the block's input."""
        pair = self.attention.keys_and_values(self._source(x_BTD, context), context)
        # [B,G,T,K] -> [B,T,G·K]
        return torch.cat([one.transpose(1, 2).flatten(2) for one in pair], 2)

    def weights(self, x_BTD: Tensor, context: Context) -> Tensor:
        """`[B,H,T,T]` attention of every row of the heads that have scores."""
        context = replace(context, rows=ALL)
        scores, mask = self.scores(x_BTD, context), self.attention.mask(context)
        if mask is not None:
            # Here the lowest number is safe: this softmax is not a fused kernel (see `hidden`).
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return scores.softmax(-1)

    def _source(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.norm(x_BTD) if context.layer.order == "pre" else x_BTD
