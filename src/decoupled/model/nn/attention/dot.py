"""Scaled dot-product attention, on SDPA."""

import math
from typing import cast

from torch import Tensor

from decoupled.model.nn.attention.base import AttentionModule, build_attention
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import rotate, take
from decoupled.model.parts.attention.dot import SelfAttention


@build_attention.register(SelfAttention)
class DotProductAttention(AttentionModule):
    """Ordinary multi-head attention; rotary and windowed when the kind says so."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        v_BHTK = self.split_heads(self.value(x_BTD))
        return self.join(self.look(x_BTD, v_BHTK, context))

    def look(self, x_BTD: Tensor, v_BHTK: Tensor, context: Context) -> Tensor:
        """`[B,H,R,K]` values by scaled dot products."""
        q_BHRK, k_BHTK = self._queries_and_keys(x_BTD, context)
        return self.attend(q_BHRK, k_BHTK, v_BHTK, self.mask(context))

    def mask(self, context: Context) -> Tensor | None:
        kind = cast(SelfAttention, context.layer.attention)
        return self.rows_of(context.frame.mask(kind.window), context)

    def scores(self, x_BTD: Tensor, context: Context) -> Tensor:
        q_BHTK, k_BHTK = self._queries_and_keys(x_BTD, context)
        return q_BHTK @ k_BHTK.transpose(-1, -2) / math.sqrt(self.head_width)

    def _queries_and_keys(self, x_BTD: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        kind, rows = cast(SelfAttention, context.layer.attention), context.rows
        q_BHRK = self.split_heads(self.query(take(x_BTD, rows)))
        k_BHTK = self.split_heads(self.key(x_BTD))
        if kind.rotary is None:
            return q_BHRK, k_BHTK
        cos, sin = context.frame.angles(kind.rotary, kind.head_width)
        # Queries may be a few rows of the text, so they take the angles of their own positions.
        return rotate(q_BHRK, take(cos, rows, 2), take(sin, rows, 2)), rotate(k_BHTK, cos, sin)
