"""The attention of decoders on SDPA: grouped heads, causal, after texts whose keys and values are kept."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.model.nn.attention.base import AttentionModule, build_attention
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import KeysValues, rotate, take
from decoupled.model.nn.linear import build_norm
from decoupled.model.parts.attention.grouped import Grouped


@build_attention.register(Grouped)
class GroupedAttention(AttentionModule):
    """Heads that share keys and values in groups, over rotary positions."""

    def __init__(self, kind: Grouped, *, width: int, **how: Any) -> None:
        super().__init__(kind, width=width, **how)
        norm, per_head = kind.norm, kind.head_width
        self.query_norm = build_norm(norm, per_head) if norm else nn.Identity()
        self.key_norm = build_norm(norm, per_head) if norm else nn.Identity()

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        (k_BGTK, v_BGTK), past = self.keys_and_values(x_BTD, context), context.frame.past
        if past is not None:
            before = past.layers[context.number]
            k_BGTK, v_BGTK = (
                torch.cat(pair, 2) for pair in zip((k_BGTK, v_BGTK), before, strict=True)
            )
        q_BHRK = self._queries(x_BTD, context)
        mask, dropout = self.mask(context), self.dropout if self.training else 0.0
        seen_BHRK = F.scaled_dot_product_attention(
            q_BHRK, k_BGTK, v_BGTK, attn_mask=mask, dropout_p=dropout, enable_gqa=True
        )
        return self.join(seen_BHRK)

    def keys_and_values(self, x_BTD: Tensor, context: Context) -> KeysValues:
        k_BGTK = self.key_norm(self.split_heads(self.key(x_BTD)))
        return rotate(k_BGTK, *self._angles(context)), self.split_heads(self.value(x_BTD))

    def mask(self, context: Context) -> Tensor | None:
        kind, past = cast(Grouped, context.layer.attention), context.frame.past
        mask = self.rows_of(context.frame.mask(None, causal=kind.causal), context)
        if past is None or mask is None:
            return mask
        before = past.real[:, None, None, :].expand(-1, -1, mask.shape[2], -1)
        return torch.cat([mask, before], 3)

    def scores(self, x_BTD: Tensor, context: Context) -> Tensor:
        q_BHTK, (k_BGTK, _) = self._queries(x_BTD, context), self.keys_and_values(x_BTD, context)
        k_BHTK = k_BGTK.repeat_interleave(q_BHTK.shape[1] // k_BGTK.shape[1], 1)
        return q_BHTK @ k_BHTK.mT / math.sqrt(self.head_width)

    def _queries(self, x_BTD: Tensor, context: Context) -> Tensor:
        q_BHRK = self.query_norm(self.split_heads(self.query(take(x_BTD, context.rows))))
        cos, sin = self._angles(context)
        return rotate(q_BHRK, take(cos, context.rows, 2), take(sin, context.rows, 2))

    def _angles(self, context: Context) -> tuple[Tensor, Tensor]:
        kind = cast(Grouped, context.layer.attention)
        return context.frame.angles(kind.rotary, kind.head_width, kind.scaling)
