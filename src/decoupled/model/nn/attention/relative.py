"""Attention to relative positions, as an additive bias to SDPA."""

import math
from typing import cast

import torch
from torch import Tensor, nn

from decoupled.errors import SpecError
from decoupled.model.nn.attention.base import AttentionModule, build_attention, hidden
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import Frame, take
from decoupled.model.parts.attention.relative import Bucketed, Segmented
from decoupled.model.parts.linear import LinearSpec


class BiasedAttention(AttentionModule):
    """Scores with something added to the scaled products of queries and keys."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        q_BHRK, k_BHTK, bias = self._parts(x_BTD, context)
        mask, scale = self.mask(context), context.layer.attention.scale
        if mask is not None:
            bias = bias.masked_fill(~mask, hidden(bias.dtype))
        v_BHTK = self.split_heads(self.value(x_BTD))
        return self.join(self.attend(q_BHRK, k_BHTK, v_BHTK, bias.to(q_BHRK.dtype), scale))

    def scores(self, x_BTD: Tensor, context: Context) -> Tensor:
        q_BHTK, k_BHTK, bias = self._parts(x_BTD, context)
        return q_BHTK @ k_BHTK.mT * context.layer.attention.scale + bias

    def _parts(self, x_BTD: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, and what is added to their scaled products: `[B,H,R,T]`."""
        q_BHRK = self.split_heads(self.query(take(x_BTD, context.rows)))
        k_BHTK = self.split_heads(self.key(x_BTD))
        q_BHRK, bias = self.bias(q_BHRK, k_BHTK, context)
        return q_BHRK, k_BHTK, bias

    def bias(self, q_BHRK: Tensor, k_BHTK: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """The queries of the products, and the bias."""
        raise NotImplementedError


@build_attention.register(Bucketed)
class BucketedAttention(BiasedAttention):
    """MPNet (Song et al., 2020): a learned number for each head and bucket of distances."""

    def bias(self, q_BHRK: Tensor, k_BHTK: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        if context.relative is None:
            raise SpecError("bucketed attention needs the encoder's table of relative positions")
        kind, table_NH = cast(Bucketed, context.layer.attention), context.relative
        key, rows = ("t5 buckets", kind.max_distance), len(table_NH)
        bucket_BTT = context.frame.cached(
            key, lambda: t5_bucket(context.frame.distance(), rows, kind.max_distance)
        )
        # [B,R,T] -> [B,R,T,H] -> [B,H,R,T]
        return q_BHRK, table_NH[take(bucket_BTT, context.rows)].permute(0, 3, 1, 2)


def t5_bucket(distance: Tensor, rows: int, max_distance: int) -> Tensor:
    """T5's buckets: half of the rows for each side; exact up to half of these, then logarithmic."""
    side, exact = rows // 2, rows // 4
    far = distance.abs()
    steps = torch.log(far.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    large = (exact + (steps * (side - exact)).long()).clamp(max=side - 1)
    return torch.where(far < exact, far, large) + side * (distance < 0)


@build_attention.register(Segmented)
class SegmentedAttention(BiasedAttention):
    """XLNet (Yang et al., 2019), Transformer-XL's scores of distances and those of equal segments."""

    distance: nn.Module

    def __init__(
        self, kind: Segmented, *, width: int, dropout: float, linear: LinearSpec = LinearSpec()
    ) -> None:
        super().__init__(kind, width=width, dropout=dropout, linear=linear)
        for name, tensor in kind.others(width).items():
            own = name.removeprefix("attention.")
            self.register_parameter(own, nn.Parameter(torch.zeros(tensor.shape)))
        self.width = width

    def bias(self, q_BHRK: Tensor, k_BHTK: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        content, place, segment = (
            q_BHRK + self.get_parameter(name)[:, None] for name in ("content", "place", "segment")
        )
        frame, kind = context.frame, cast(Segmented, context.layer.attention)
        step_M, index_BTT = frame.cached(("steps", kind.clamp), lambda: steps(frame, kind.clamp))
        # Queries against the map of each distance, of which every pair of tokens takes its own.
        r_HMK = self.split_heads(self.distance(sinusoids(step_M, self.width).to(content))[None])
        index = take(index_BTT, context.rows)[:, None].expand(-1, self.heads, -1, -1)
        bd = (place @ r_HMK.mT).gather(-1, index)
        # [2,H,K] -> [H,K,2]
        e_HKS = self.get_parameter("segments").permute(1, 2, 0)
        side_BT = frame.segments()
        apart_BTT = (side_BT[:, :, None] != side_BT[:, None, :]).long()
        index = take(apart_BTT, context.rows)[:, None].expand(-1, self.heads, -1, -1)
        ef = (segment @ e_HKS).gather(-1, index)
        return content, (bd + ef) / math.sqrt(self.head_width)


def steps(frame: Frame, clamp: int) -> tuple[Tensor, Tensor]:
    """`[M]` all distances of a batch, and `[B,T,T]` which of them each pair of tokens has."""
    distance = frame.distance()
    if clamp:
        distance = distance.clamp(-clamp, clamp)
    least = distance.amin()
    return torch.arange(int(least), int(distance.amax()) + 1, device=distance.device), (
        distance - least
    )


def sinusoids(step_M: Tensor, width: int) -> Tensor:
    """`[M,D]` sines, then cosines, of distances."""
    speed = 10_000.0 ** (-torch.arange(0, width, 2, device=step_M.device) / width)
    angle = step_M[:, None].float() * speed
    return torch.cat([angle.sin(), angle.cos()], -1)
