"""Attention most of whose heads follow fixed patterns (Raganato et al., 2020), without scores.

Over the real tokens 0..n-1 of a sequence, row i looks at: `current` i, `previous` i-1, `next` i+1, `last`
n-1; `left` every j ≤ i-2 with weight (j+1)³ and `right` every j ≥ i+2 with weight (n-j)³; `end` and `start`
every j with those weights. `apply` gives the same as `matrix @ values` in time linear in n. N: real tokens,
packed to the left.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from decoupled.errors import InputError
from decoupled.methods.fixed_heads.part import Empty, FixedPatterns, Pattern
from decoupled.methods.places import order, packing
from decoupled.model.nn.attention.base import build_attention
from decoupled.model.nn.attention.dot import DotProductAttention
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import Frame, take


@build_attention.register(FixedPatterns)
class PatternedAttention(DotProductAttention):
    """The first heads follow fixed patterns, the others scores of their own."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        kind = cast(FixedPatterns, context.layer.attention)
        v_BHTK = self.split_heads(self.value(x_BTD))
        fixed, parts = len(kind.patterns), []
        if fixed and context.frame.causal:
            raise InputError(
                f"layer {context.number} has fixed patterns, which look at later tokens and the length of "
                "the text, and a decoder knows neither; give it causal attention"
            )
        if fixed:
            y_BHTK = apply(kind.patterns, v_BHTK[:, :fixed], context.frame, kind.empty)
            parts.append(take(y_BHTK, context.rows, 2))
        if kind.learned:
            parts.append(self.look(x_BTD, v_BHTK[:, fixed:], context))
        return self.join(torch.cat(parts, 1))

    def scores(self, x_BTD: Tensor, context: Context) -> Tensor:
        if not cast(FixedPatterns, context.layer.attention).learned:
            raise InputError(
                f"layer {context.number} has fixed heads only, and so no scores to compare; train with "
                "weights.attention=0, or let a head learn"
            )
        return super().scores(x_BTD, context)


def matrix(pattern: Pattern, frame: Frame, empty: Empty = "clamp") -> Tensor:
    """`[B,T,T]` weights of a pattern: the definition, and the path for sequences cut into blocks."""
    order_BT, count_BT = order(frame)
    i, j, n = order_BT[:, :, None], order_BT[:, None, :], count_BT[:, :, None]
    seen = frame.real_BT[:, None, :]
    if frame.block_BT is not None:
        seen = seen & (frame.block_BT[:, :, None] == frame.block_BT[:, None, :])
    near = {"current": i, "previous": i - 1, "next": i + 1, "last": n - 1}
    if pattern in near:
        at = near[pattern]
        if empty == "clamp":
            at = torch.minimum(at.clamp(min=0), n - 1)
        return (seen & (j == at)).float()
    rising = pattern in ("left", "end")
    # Relative to n, so that the cubes stay small: (j+1)³ reaches 1.3e8 at n = 512.
    weight = (((j + 1) if rising else (n - j)) / n.clamp(min=1)).float() ** 3
    inside = seen
    if pattern == "left":
        inside = seen & (j <= i - 2)
    elif pattern == "right":
        inside = seen & (j >= i + 2)
    weight = weight.masked_fill(~inside, 0.0)
    total = weight.sum(-1, keepdim=True)
    if empty == "clamp":
        edge = seen & (j == (0 if rising else n - 1))
        weight = torch.where(total > 0, weight, edge.float())
        total = torch.where(total > 0, total, 1.0)
    return weight / total.clamp(min=1e-30)


def apply(patterns: Sequence[Pattern], v_BHTK: Tensor, frame: Frame, empty: Empty) -> Tensor:
    """`[B,H,T,K]`: the values of head h under pattern h."""
    heads = zip(patterns, v_BHTK.unbind(1), strict=True)
    if frame.block_BT is not None:
        return torch.stack([matrix(p, frame, empty).to(v.dtype) @ v for p, v in heads], 1)
    return torch.stack([_shift(p, v, frame, empty) for p, v in heads], 1)


def _shift(pattern: Pattern, v_BTK: Tensor, frame: Frame, empty: Empty) -> Tensor:
    if pattern == "current":
        return v_BTK
    # Real tokens first, so that shifts and running sums do not cross padding.
    v_BNK = _gather(v_BTK, packing(frame))
    i, n = order(frame)
    if pattern not in ("previous", "next", "last"):
        return _context(pattern, v_BNK, frame, empty).to(v_BTK.dtype)
    at = {"previous": i - 1, "next": i + 1, "last": n - 1}[pattern]
    near = torch.minimum(at, n - 1).clamp(min=0)
    y = _gather(v_BNK, near)
    return y if empty == "clamp" else y.masked_fill((at != near)[..., None], 0.0)


def _context(pattern: Pattern, v_BNK: Tensor, frame: Frame, empty: Empty) -> Tensor:
    """The cubic patterns, by running sums in fp32."""
    i, n = order(frame)
    n_B1 = n[:, :1]
    place = torch.arange(v_BNK.shape[1], device=v_BNK.device)[None]
    rising = pattern in ("left", "end")
    share = ((place + 1) if rising else (n_B1 - place)) / n_B1.clamp(min=1)
    weight_BN = torch.where(place < n_B1, share.float() ** 3, 0.0)
    weighted = v_BNK.float() * weight_BN[..., None]
    if pattern in ("end", "start"):
        y = weighted.sum(1, keepdim=True) / weight_BN.sum(1).clamp(min=1e-30)[:, None, None]
        return y.expand(-1, i.shape[1], -1)
    if rising:
        # Row i is the running sum up to i-2 divided by that of the weights.
        sums, weights, at = weighted.cumsum(1), weight_BN.cumsum(1), i - 2
    else:
        # From the right, not as a difference from the total: small sums would drown in it.
        sums = weighted.flip(1).cumsum(1).flip(1)
        weights, at = weight_BN.flip(1).cumsum(1).flip(1), i + 2
    near = torch.minimum(at, n - 1).clamp(min=0)
    y = _gather(sums, near) / weights.gather(1, near).clamp(min=1e-30)[..., None]
    edge = _gather(v_BNK.float(), near) if empty == "clamp" else torch.zeros_like(y)
    return torch.where((at != near)[..., None], edge, y)


def _gather(x_BTK: Tensor, index_BT: Tensor) -> Tensor:
    return x_BTK.gather(1, index_BT[..., None].expand(-1, -1, x_BTK.shape[-1]))
