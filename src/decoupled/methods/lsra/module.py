"""Long-short range attention as a module. C: columns of a half, W: tokens that a kernel sees."""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.methods.lsra.part import LongShort
from decoupled.methods.places import order, packing
from decoupled.model.nn.attention.base import AttentionModule, build_attention
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import Frame, take
from decoupled.model.parts.linear import LinearSpec


@build_attention.register(LongShort)
class LongShortAttention(AttentionModule):
    """Heads on the first half of the columns, a convolution over neighbours on the other."""

    near: nn.Module
    near_out: nn.Module
    weigh: nn.Module

    def __init__(self, kind: LongShort, *, width: int, dropout: float, linear: LinearSpec) -> None:
        super().__init__(kind, width=width, dropout=dropout, linear=linear)
        if not kind.dynamic:
            self.kernel = nn.Parameter(torch.zeros(kind.kernels, kind.kernel))

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        kind = cast(LongShort, context.layer.attention)
        far_BTC, near_BTC = x_BTD.chunk(2, -1)
        q, k = self._queries_and_keys(far_BTC, context)
        v = self.split_heads(self.value(far_BTC))
        far_BRC = self.join(self.attend(q, k, v, self.mask(context)))
        u_BTC = self.near(near_BTC)
        # GLU: the second half gates the first.
        u_BTC = F.glu(u_BTC, -1) if kind.gated else u_BTC
        y_BRC = self._convolved(u_BTC, kind, context)
        return torch.cat([far_BRC, self.near_out(y_BRC)], -1)

    def scores(self, x_BTD: Tensor, context: Context) -> Tensor:
        q, k = self._queries_and_keys(x_BTD.chunk(2, -1)[0], context)
        return q @ k.transpose(-1, -2) / math.sqrt(self.head_width)

    def _queries_and_keys(self, far_BTC: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        q_BRC = self.query(take(far_BTC, context.rows))
        return self.split_heads(q_BRC), self.split_heads(self.key(far_BTC))

    def _convolved(self, u_BTC: Tensor, kind: LongShort, context: Context) -> Tensor:
        """`[B,R,C]`, each token with its neighbours."""
        frame, rows = context.frame, context.rows
        if not kind.dynamic and frame.block_BT is None:
            return take(depthwise(u_BTC, self._weights().to(u_BTC.dtype), frame), rows)
        if kind.dynamic:
            logits = self.weigh(take(u_BTC, rows))
            # Dynamic convolution: each token's kernel is a softmax of its own projection.
            weight_BRHW = logits.view(*logits.shape[:2], kind.kernels, -1).softmax(-1)
        else:
            weight_BRHW = self._weights()[None, None]
        near_BRT = take(neighbours(frame, kind.kernel), rows)
        return banded(u_BTC, weight_BRHW.to(u_BTC.dtype), near_BRT)

    def _weights(self) -> Tensor:
        """`[H,W]` kernels that all tokens share."""
        return self.kernel.softmax(-1)


def neighbours(frame: Frame, kernel: int) -> Tensor:
    """`[B,T,T]`: the place of each token in the kernel of each other; -1 where that does not see it."""
    order_BT, _ = order(frame)
    place = order_BT[:, None, :] - order_BT[:, :, None] + _reach(frame, kernel)[0]
    seen = frame.real_BT[:, None, :] & (place >= 0) & (place < kernel)
    if frame.block_BT is not None:
        seen = seen & (frame.block_BT[:, :, None] == frame.block_BT[:, None, :])
    return place.masked_fill(~seen, -1)


def _reach(frame: Frame, kernel: int) -> tuple[int, int]:
    """Tokens that a kernel sees before and after its own."""
    return (kernel - 1, 0) if frame.causal else (kernel // 2, kernel // 2)


def banded(u_BTC: Tensor, weight_BRHW: Tensor, near_BRT: Tensor) -> Tensor:
    """`[B,R,C]`: the definition, and the path of kernels that differ from token to token."""
    batch, rows, _ = near_BRT.shape
    heads = weight_BRHW.shape[2]
    # [B,R,H,W] -> [B,H,R,W], then to [B,H,R,T] by the place of each token in the kernel.
    weight_BHRW = weight_BRHW.transpose(1, 2).expand(batch, heads, rows, -1)
    index = near_BRT[:, None].expand(-1, heads, -1, -1)
    weight_BHRT = weight_BHRW.gather(-1, index.clamp(min=0)).masked_fill(index < 0, 0.0)
    u_BHTK = u_BTC.view(*u_BTC.shape[:2], heads, -1).transpose(1, 2)
    return (weight_BHRT @ u_BHTK).transpose(1, 2).flatten(2)


def depthwise(u_BTC: Tensor, weight_HW: Tensor, frame: Frame) -> Tensor:
    """`[B,T,C]`: the same kernels for all tokens, which are brought together over the padding between."""
    order_BT, packing_BT = order(frame)[0], packing(frame)
    channels, kernel = u_BTC.shape[-1], weight_HW.shape[-1]
    # Padding must not enter the sums of its neighbours.
    u_BTC = u_BTC * frame.real_BT[..., None]
    packed = u_BTC.gather(1, packing_BT[..., None].expand_as(u_BTC)).transpose(1, 2)
    # Neighbouring channels share a kernel: channel c uses kernel ⌊c/(C/H)⌋.
    weight_C1W = weight_HW.repeat_interleave(channels // len(weight_HW), 0)[:, None]
    packed = F.pad(packed, _reach(frame, kernel))
    y_BTC = F.conv1d(packed, weight_C1W, groups=channels).transpose(1, 2)
    return y_BTC.gather(1, order_BT[..., None].expand_as(y_BTC))
