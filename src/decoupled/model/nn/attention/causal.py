"""Attention that looks back only: dot products under a causal mask."""

from __future__ import annotations

from torch import Tensor

from decoupled.model.nn.attention.base import build_attention
from decoupled.model.nn.attention.dot import DotProductAttention
from decoupled.model.nn.block import Context
from decoupled.model.parts.attention.causal import Causal


@build_attention.register(Causal)
class CausalAttention(DotProductAttention):
    """A row may be computed as soon as the tokens before it are known, and stays as it is after that."""

    def mask(self, context: Context) -> Tensor | None:
        return self.rows_of(context.frame.mask(None, causal=True), context)
