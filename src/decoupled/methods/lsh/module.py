"""Attention within buckets of alike tokens (Kitaev et al., 2020), queries and keys being the same.

A round turns each query by a fixed rotation; its bucket is the direction, of either sign, that it points to
most. Tokens are sorted by bucket and cut into chunks, and a token sees those of its bucket in its own chunk
and the two next to it. All rounds together are one softmax over the union of what they see. Chunks do not
wrap around: the last one would then depend on padding. C: chunks, M: tokens of a chunk, N: tokens that a
chunk sees.
"""

from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.methods.lsh.part import LSH
from decoupled.methods.places import order
from decoupled.model.nn.attention.base import AttentionModule, build_attention, hidden
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import Frame, rotate, take

SELF = -1e5
"""The score of a token for itself: so low that it counts only where there is no other token."""
FAR = -(1 << 30)
"""A code so low that no token sees it."""


class Round(NamedTuple):
    """The result of one hashing for every token, `[B,H,T]` each."""

    rank: Tensor
    """The token's place after sorting by bucket, padding last."""
    code: Tensor
    """The token's chunk plus twice its bucket: tokens see each other where codes differ by at most 1."""


@build_attention.register(LSH)
class LSHAttention(AttentionModule):
    """Dense where a text is short, or few rows are wanted; else chunk by chunk, with the same result."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        kind, frame, rows = cast(LSH, context.layer.attention), context.frame, context.rows
        q_BHTK, v_BHTK = (self.split_heads(part(x_BTD)) for part in (self.query, self.value))
        if kind.rotary is not None:
            q_BHTK = rotate(q_BHTK, *frame.angles(kind.rotary, kind.head_width))
        rounds = hash_rounds(q_BHTK.detach(), frame, kind)
        q_BHRK = take(q_BHTK, rows, 2)
        if frame.block_BT is not None or kind.dense(q_BHRK.shape[2]):
            bias = dense_bias(rounds, context, q_BHTK.dtype)
            # Reformer shares queries and keys: k = q / |q|, with scale 1.
            k_BHTK = F.normalize(q_BHTK, dim=-1)
            return self.join(self.attend(q_BHRK, k_BHTK, v_BHTK, bias, 1.0))
        y_BHTK = self.chunked(q_BHTK, v_BHTK, rounds, kind.chunk)
        return self.join(take(y_BHTK, rows, 2))

    def chunked(self, q_BHTK: Tensor, v_BHTK: Tensor, rounds: list[Round], chunk: int) -> Tensor:
        """`[B,H,T,K]` of every row, in memory that grows with the text and not with its square."""
        tokens = q_BHTK.shape[2]
        rounds, q_BHTK, v_BHTK = _filled(rounds, q_BHTK, v_BHTK, chunk)
        # At least fp32: sums over many tokens lose precision in half.
        exact = torch.promote_types(q_BHTK.dtype, torch.float32)
        outputs, sums = [], []
        for number, one in enumerate(rounds):
            order = one.rank.argsort(-1)
            q, v = (_cut(_by(x, order), chunk) for x in (q_BHTK, v_BHTK))
            codes = [_cut(_by(other.code, order), chunk) for other in rounds[: number + 1]]
            scores = (q @ _near(F.normalize(q, dim=-1)).mT).to(exact)
            scores = scores.masked_fill(_hidden(codes), torch.finfo(exact).min)
            own = scores[..., chunk : 2 * chunk].diagonal(dim1=-2, dim2=-1)
            own.fill_(SELF)
            share, (best, at) = scores.softmax(-1), scores.max(-1)
            # The logarithm of the sum, from what the softmax has computed already.
            sum_BHCM = best - share.gather(-1, at[..., None])[..., 0].log()
            sums.append(_by(sum_BHCM.flatten(2), one.rank))
            share = F.dropout(share, self.dropout, self.training).to(v.dtype)
            outputs.append(_by((share @ _near(v)).flatten(2, 3), one.rank))
        # Rounds are weighed by exp(z_r - logsumexp_r z_r), as in Reformer.
        share_R = torch.stack(sums).softmax(0)[..., None].to(v_BHTK.dtype)
        return (share_R * torch.stack(outputs)).sum(0)[:, :, :tokens]


# Hashing ------------------------------------------------------------------------------------------


@lru_cache
def rotation(seed: int, number: int, width: int, columns: int) -> Tensor:
    """`[K,columns]` of a round: Gaussian, from a stream that never changes; more columns begin alike."""
    draw = np.random.RandomState((seed + 7919 * number) % (1 << 32))
    return torch.from_numpy(draw.standard_normal((columns, width)).T.astype(np.float32))


@lru_cache
def _columns(kind: LSH, tokens: int) -> Tensor:
    """`[tokens+1]` directions for a text of each length."""
    return torch.tensor([kind.columns(length) for length in range(tokens + 1)])


def hash_rounds(q_BHTK: Tensor, frame: Frame, kind: LSH) -> list[Round]:
    """Buckets and sorted places of every round: by the text alone, whatever the padding."""
    (_, count_BT), tokens, device = order(frame), q_BHTK.shape[2], q_BHTK.device
    columns, place_T = _columns(kind, tokens).to(device), torch.arange(tokens, device=device)
    most = kind.columns(tokens)
    # A short text uses fewer directions, whatever the batch is padded to.
    unused = torch.arange(most, device=device) >= columns[count_BT][:, None, :, None]
    # Texts of a joint sequence are sorted apart, and padding comes after all of them.
    block_BT = torch.zeros_like(count_BT) if frame.block_BT is None else frame.block_BT
    part_BT = torch.where(frame.real_BT, block_BT, block_BT.max() + 1)
    before_BHT: Tensor | int = 0
    if frame.block_BT is not None:
        before_BHT = (part_BT[:, :, None] > part_BT[:, None]).sum(-1)[:, None]
    rounds = []
    for number in range(kind.rounds):
        bucket_BHT = torch.zeros(q_BHTK.shape[:3], dtype=torch.long, device=device)
        if most:
            turn = rotation(kind.seed, number, kind.head_width, most).to(device)
            turned = (q_BHTK.float() @ turn).masked_fill(unused, 0.0)
            # h(x) = argmax([xR; -xR]): the largest direction of either sign.
            bucket_BHT = turned.abs().argmax(-1)
            bucket_BHT += most * (turned.gather(-1, bucket_BHT[..., None])[..., 0] < 0)
        bucket_BHT = bucket_BHT + (2 * most + tokens + 1) * part_BT[:, None]
        # By bucket, then by position; two argsorts turn an order into ranks.
        rank_BHT = (bucket_BHT * tokens + place_T).argsort(-1).argsort(-1) - before_BHT
        rounds.append(Round(rank_BHT, (rank_BHT // kind.chunk + 2 * bucket_BHT).int()))
    return rounds


# What a token sees --------------------------------------------------------------------------------


def dense_bias(rounds: list[Round], context: Context, dtype: torch.dtype) -> Tensor:
    """`[B,H,R,T]` to add to scores: the union of what all rounds let the rows of the context see."""
    rows, device = context.rows, context.frame.real_BT.device
    seen = torch.zeros((), dtype=torch.bool, device=device)
    for _, code in rounds:
        seen = seen | ((take(code, rows, 2)[..., None] - code[:, :, None]).abs() <= 1)
    own = take(torch.eye(seen.shape[-1], dtype=torch.bool, device=device), rows, 0)
    seen = seen & ~own
    # Itself where there is no other, at its full score: of a row whose every score is low, cuDNN makes nan as
    # the gradient (pytorch/pytorch#196678).
    seen = seen | (own & ~seen.any(-1, keepdim=True))
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(~seen, hidden(dtype))


def _hidden(codes: list[Tensor]) -> Tensor:
    """`[B,H,C,M,N]`: true of what the last round does not see, and of what one before it saw already.

    Each pair counts once, so all rounds together are a softmax over their union; Reformer divides by the
    number of rounds that see a pair, which gives the same.
    """
    *earlier, last = [(x[..., None] - _near(x, FAR)[..., None, :]).abs() <= 1 for x in codes]
    hidden = ~last
    for seen in earlier:
        hidden = hidden | seen
    return hidden


def _filled(
    rounds: list[Round], q: Tensor, v: Tensor, chunk: int
) -> tuple[list[Round], Tensor, Tensor]:
    """The rounds, queries and values padded to whole chunks; nothing sees the padding."""
    tokens = q.shape[2]
    if not (more := -tokens % chunk):
        return rounds, q, v
    last = torch.arange(tokens, tokens + more, device=q.device).expand(*q.shape[:2], more)
    longer = [
        Round(torch.cat([rank, last], -1), F.pad(code, (0, more), value=FAR // 2))
        for rank, code in rounds
    ]
    return longer, F.pad(q, (0, 0, 0, more)), F.pad(v, (0, 0, 0, more))


def _by(x: Tensor, index_BHT: Tensor) -> Tensor:
    """`[B,H,T,…]` with the tokens in the order of `index_BHT`."""
    index = index_BHT if x.dim() == 3 else index_BHT[..., None].expand(-1, -1, -1, x.shape[-1])
    return x.gather(2, index)


def _cut(x: Tensor, chunk: int) -> Tensor:
    """`[B,H,T,…]` to `[B,H,C,M,…]`."""
    return x.reshape(*x.shape[:2], -1, chunk, *x.shape[3:])


def _near(x: Tensor, outside: float = 0.0) -> Tensor:
    """`[B,H,C,M,…]` to `[B,H,C,N,…]`: what is in the chunk before, in the chunk, and in the one after."""
    edge = torch.full_like(x[:, :, :1], outside)
    before, after = torch.cat([edge, x[:, :, :-1]], 2), torch.cat([x[:, :, 1:], edge], 2)
    return torch.cat([before, x, after], 3)
