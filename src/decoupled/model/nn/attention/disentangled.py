"""Attention that looks at relative positions."""

from __future__ import annotations

import math
from typing import cast

from torch import Tensor, nn

from decoupled.model.nn.attention.base import AttentionModule, build_attention, hidden
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import take
from decoupled.model.parts.attention.disentangled import Disentangled


@build_attention.register(Disentangled)
class DisentangledAttention(AttentionModule):
    """DeBERTa (He et al., 2021): relative positions enter the scores, as an additive bias to SDPA."""

    relative_key: nn.Module
    relative_query: nn.Module

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        q_BHRK, k_BHTK, bias, scale = self._parts(x_BTD, context)
        mask = self.mask(context)
        # SDPA scales the products and then adds the bias, so the bias must be scaled here.
        bias = bias * scale
        if mask is not None:
            bias = bias.masked_fill(~mask, hidden(bias.dtype))
        v_BHTK = self.split_heads(self.value(x_BTD))
        return self.join(self.attend(q_BHRK, k_BHTK, v_BHTK, bias, scale))

    def scores(self, x_BTD: Tensor, context: Context) -> Tensor:
        q_BHTK, k_BHTK, bias, scale = self._parts(x_BTD, context)
        return (q_BHTK @ k_BHTK.transpose(-1, -2) + bias) * scale

    def _parts(self, x_BTD: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor, float]:
        """Queries, keys, position scores `[B,H,R,T]` before scaling, and the scale."""
        kind = cast(Disentangled, context.layer.attention)
        q_BHRK = self.split_heads(self.query(take(x_BTD, context.rows)))
        k_BHTK = self.split_heads(self.key(x_BTD))
        bias = self._bias(q_BHRK, k_BHTK, kind, context)
        # DeBERTa, eq. 4: 1/sqrt(3d) with both position terms, so the variance stays as with one
        # term.
        return q_BHRK, k_BHTK, bias, 1 / math.sqrt(kind.head_width * (1 + len(kind.terms)))

    def _bias(self, q_BHRK: Tensor, k_BHTK: Tensor, kind: Disentangled, context: Context) -> Tensor:
        if context.relative is None:
            return q_BHRK.new_zeros(1)
        table = context.relative[None, : 2 * kind.buckets]
        bucket_BRT = take(context.frame.buckets(kind.buckets, kind.max_distance), context.rows)
        # [B,R,T] -> [B,H,R,T] without a copy: heads share the buckets.
        index = bucket_BRT[:, None].expand(-1, self.heads, -1, -1)
        bias = q_BHRK.new_zeros(())
        # Content-to-position: the query's content against the key's relative position.
        if "c2p" in kind.terms:
            key = self.key if kind.shared else self.relative_key
            c2p = q_BHRK @ self.split_heads(key(table)).transpose(-1, -2)  # [B,H,R,rows]
            bias = bias + c2p.gather(-1, index)
        # Position-to-content: the key's content against the query's relative position.
        if "p2c" in kind.terms:
            query = self.query if kind.shared else self.relative_query
            p2c = self.split_heads(query(table)) @ k_BHTK.transpose(-1, -2)  # [B,H,rows,T]
            bias = bias + p2c.gather(-2, index)
        return bias
