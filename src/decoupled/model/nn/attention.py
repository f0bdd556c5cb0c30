"""Attention kinds. Each computes the given rows against all keys of the batch, on SDPA."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import assert_never

from decoupled.model.nn import patterns
from decoupled.model.nn.frame import Frame, Rows, rotate, take
from decoupled.model.nn.linear import build_linear
from decoupled.model.parts.attention import (
    AttentionSpec,
    Disentangled,
    FixedPatterns,
    SelfAttention,
)
from decoupled.model.parts.linear import LinearSpec


def build_attention(
    spec: AttentionSpec, *, width: int, dropout: float, maps: LinearSpec = LinearSpec()
) -> Attention:
    """The one place where an attention kind is chosen."""
    match spec:
        case SelfAttention():
            return DotProductAttention(spec, width=width, dropout=dropout, maps=maps)
        case Disentangled():
            return DisentangledAttention(spec, width=width, dropout=dropout, maps=maps)
        case FixedPatterns():
            return PatternedAttention(spec, width=width, dropout=dropout, maps=maps)
        case _:
            assert_never(spec)


class Attention(nn.Module):
    """Query, key, value and output maps; a kind adds how scores are made.

    `forward(x_BTD, frame, rows, spec, relative)` returns `[B,R,D]` for the given rows. The spec is passed
    again because layers that share a slot may differ in window and rotary base.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        *,
        width: int,
        bias: bool,
        dropout: float,
        maps: LinearSpec,
        learned: int | None = None,
    ) -> None:
        super().__init__()
        self.heads = spec.heads
        self.head_width = spec.head_width
        self.dropout = dropout
        inner = spec.heads * spec.head_width
        scored = inner if learned is None else learned * spec.head_width
        if scored:
            self.query = build_linear(maps, width, scored, bias=bias)
            self.key = build_linear(maps, width, scored, bias=bias)
        self.value = build_linear(maps, width, inner, bias=bias)
        self.out = build_linear(maps, inner, width, bias=bias)

    def split_heads(self, x_BTD: Tensor) -> Tensor:
        """`[B,T,H·K]` to `[B,H,T,K]`."""
        return x_BTD.view(*x_BTD.shape[:2], -1, self.head_width).transpose(1, 2)

    def look(
        self,
        x_BTD: Tensor,
        v_BHTK: Tensor,
        frame: Frame,
        rows: Rows,
        spec: SelfAttention | FixedPatterns,
    ) -> Tensor:
        """`[B,H,R,K]` values by scaled dot products, rotary and windowed when the spec says so."""
        q_BHRK = self.split_heads(self.query(take(x_BTD, rows)))
        k_BHTK = self.split_heads(self.key(x_BTD))
        if spec.rotary is not None:
            cos, sin = frame.angles(spec.rotary, spec.head_width)
            q_BHRK = rotate(q_BHRK, take(cos, rows, 2), take(sin, rows, 2))
            k_BHTK = rotate(k_BHTK, cos, sin)
        mask = frame.mask(spec.window)
        if mask is not None and mask.shape[2] > 1:
            mask = take(mask, rows, 2)
        return self.mix(q_BHRK, k_BHTK, v_BHTK, mask)

    def mix(
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
        """The heads through the output map, `[B,R,D]`."""
        return self.out(y_BHRK.transpose(1, 2).flatten(2))


class DotProductAttention(Attention):
    """Ordinary multi-head attention; rotary and windowed when the spec says so."""

    def __init__(
        self, spec: SelfAttention, *, width: int, dropout: float, maps: LinearSpec
    ) -> None:
        super().__init__(spec, width=width, bias=spec.bias, dropout=dropout, maps=maps)

    def forward(
        self, x_BTD: Tensor, frame: Frame, rows: Rows, spec: SelfAttention, relative: Tensor | None
    ) -> Tensor:
        v_BHTK = self.split_heads(self.value(x_BTD))
        return self.join(self.look(x_BTD, v_BHTK, frame, rows, spec))


class PatternedAttention(Attention):
    """The first heads follow fixed patterns (see `nn/patterns.py`), the others scores of their own."""

    def __init__(
        self, spec: FixedPatterns, *, width: int, dropout: float, maps: LinearSpec
    ) -> None:
        super().__init__(
            spec, width=width, bias=spec.bias, dropout=dropout, maps=maps, learned=spec.learned
        )

    def forward(
        self, x_BTD: Tensor, frame: Frame, rows: Rows, spec: FixedPatterns, relative: Tensor | None
    ) -> Tensor:
        v_BHTK = self.split_heads(self.value(x_BTD))
        fixed = len(spec.patterns)
        parts = []
        if fixed:
            found = patterns.apply(spec.patterns, v_BHTK[:, :fixed], frame, spec.empty)
            parts.append(take(found, rows, 2))
        if spec.learned:
            parts.append(self.look(x_BTD, v_BHTK[:, fixed:], frame, rows, spec))
        return self.join(torch.cat(parts, 1))


class DisentangledAttention(Attention):
    """DeBERTa (He et al., 2021): relative positions enter the scores, as an additive bias to SDPA."""

    def __init__(self, spec: Disentangled, *, width: int, dropout: float, maps: LinearSpec) -> None:
        super().__init__(spec, width=width, bias=True, dropout=dropout, maps=maps)
        inner = spec.heads * spec.head_width
        if not spec.shared and "c2p" in spec.terms:
            self.relative_key = build_linear(maps, width, inner)
        if not spec.shared and "p2c" in spec.terms:
            self.relative_query = build_linear(maps, width, inner)

    def forward(
        self, x_BTD: Tensor, frame: Frame, rows: Rows, spec: Disentangled, relative: Tensor | None
    ) -> Tensor:
        q_BHRK = self.split_heads(self.query(take(x_BTD, rows)))
        k_BHTK = self.split_heads(self.key(x_BTD))
        scale = 1 / math.sqrt(spec.head_width * (1 + len(spec.terms)))
        bias = self._bias(q_BHRK, k_BHTK, frame, rows, spec, relative)
        mask = frame.mask(None)
        if mask is not None:
            mask = take(mask, rows, 2) if mask.shape[2] > 1 else mask
            bias = (bias * scale).masked_fill(~mask, torch.finfo(bias.dtype).min)
        else:
            bias = bias * scale
        v_BHTK = self.split_heads(self.value(x_BTD))
        return self.join(self.mix(q_BHRK, k_BHTK, v_BHTK, bias, scale))

    def _bias(
        self,
        q_BHRK: Tensor,
        k_BHTK: Tensor,
        frame: Frame,
        rows: Rows,
        spec: Disentangled,
        relative: Tensor | None,
    ) -> Tensor:
        """`[B,H,R,T]` position scores before scaling."""
        if relative is None:
            return q_BHRK.new_zeros(1)
        table = relative[None, : 2 * spec.buckets]
        bucket_BRT = take(frame.buckets(spec.buckets, spec.max_distance), rows)
        index = bucket_BRT[:, None].expand(-1, self.heads, -1, -1)
        bias = q_BHRK.new_zeros(())
        if "c2p" in spec.terms:
            key = self.key if spec.shared else self.relative_key
            c2p = q_BHRK @ self.split_heads(key(table)).transpose(-1, -2)  # [B,H,R,rows]
            bias = bias + c2p.gather(-1, index)
        if "p2c" in spec.terms:
            query = self.query if spec.shared else self.relative_query
            p2c = self.split_heads(query(table)) @ k_BHTK.transpose(-1, -2)  # [B,H,rows,T]
            bias = bias + p2c.gather(-2, index)
        return bias
