"""Attention that looks at relative positions."""

from typing import cast

from torch import Tensor, nn

from decoupled.model.nn.attention.base import build_attention
from decoupled.model.nn.attention.relative import BiasedAttention
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import take
from decoupled.model.parts.attention.disentangled import Disentangled


@build_attention.register(Disentangled)
class DisentangledAttention(BiasedAttention):
    """DeBERTa (He et al., 2021): relative positions enter the scores, as an additive bias to SDPA."""

    relative_key: nn.Module
    relative_query: nn.Module

    def bias(self, q_BHRK: Tensor, k_BHTK: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        kind = cast(Disentangled, context.layer.attention)
        if context.relative is None:
            return q_BHRK, q_BHRK.new_zeros(1)
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
        return q_BHRK, bias * kind.scale
