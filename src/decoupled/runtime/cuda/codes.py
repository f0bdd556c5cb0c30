"""Attention to codes as they are: of rows that ask little, where passages are still as stored.

The plain form is the definition, as in `ops`. Shapes: P pairs, R rows of each that ask, M = P·R, N codes, W
their width, H heads, K head width, Q query rows, L codes of the longest passage.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from decoupled.runtime.cuda.batch import Joined, Pairs
from decoupled.runtime.cuda.ops import Linear, ProductShape, query_rows

LONGEST_QUERY, WIDEST_CODES, WIDEST_HEAD = 128, 256, 64
"""Largest sizes for which a program of the kernel has registers: query rows, code width, head width."""


CODES_AT_ONCE, WARPS, HEADS_AT_ONCE = 32, 4, 4
"""Codes of a passage that a program reads at a time, and its warps: with more, what one has must be handed
to others between the products. So many heads of a row that asks alone, one after the other."""


def fits(rows: int, query: int, shape: ProductShape, codes: int) -> bool:
    """Whether attending to codes is possible, and cheaper than making keys and values of them.

    A row that asks is mapped once for each head, a code twice for all heads.
    """
    small = query <= LONGEST_QUERY and codes <= WIDEST_CODES and shape.width <= WIDEST_HEAD
    # Mapping rows x heads queries must cost no more than mapping each code to all heads.
    return small and rows * shape.heads <= shape.inner


def attend(
    q: Joined, k: Joined, v: Joined, z_NW: Tensor, fold: Linear, pairs: Pairs, shape: ProductShape
) -> Tensor:
    """`[P·R,H·K]`: each pair's R asking rows attend to its query's rows, and to codes as they are.

    With `k = F_k z + b_k` for a code, a score is `q·k = (F_k' q)·z + q·b_k`; and codes are averaged before
    `F_v`, not after. So a row a head is mapped, not every code. `fold` makes query, key and value of a code.
    """
    heads, width, inner = shape.heads, shape.width, shape.inner
    # The first rows of the fold are the query map, which codes do not need.
    key_HKW, value_HKW = fold.weight[inner:].view(2, heads, width, -1)
    assert fold.bias is not None
    biases = fold.bias[inner:].view(2, heads, width)
    q_HMK = q.query.view(-1, heads, width).transpose(0, 1)
    # [H,M,K] x [H,K,W] -> [H,M,W]: queries in the space of the codes.
    asking_HMW = torch.bmm(q_HMK, key_HKW)
    # Query rows have keys and values of their own; both kinds of scores share one softmax.
    step = _gather_cuda if z_NW.is_cuda else _gather
    own_MI, mean_HMW = step(_Codes(q, asking_HMW, k, v, z_NW, biases, pairs, shape))
    own_HMK = own_MI.view(-1, heads, width).transpose(0, 1)
    # The mean code through W_v is the mean of the values; the bias was added by the step above.
    own_HMK.baddbmm_(mean_HMW, value_HKW.transpose(1, 2))  # straight into the rows of all heads
    return own_MI


class _Codes(NamedTuple):
    """The inputs of attention to codes, on either device."""

    q: Joined
    asking: Tensor
    k: Joined
    v: Joined
    z: Tensor
    biases: Tensor
    pairs: Pairs
    shape: ProductShape


def _gather(source: _Codes) -> tuple[Tensor, Tensor]:
    """Values gathered from query rows, with the codes' share of the bias, and the mean of the codes."""
    q, asking_HMW, k, v, z_NW, biases, pairs, shape = source
    heads, rows = shape.heads, q.pair_rows
    q_PR = query_rows(q, rows, pairs)
    k_PQ, longest = query_rows(k, pairs.query, pairs), torch.arange(pairs.longest)
    q_PRHK, k_PQHK, v_PQHK = (
        x.query[at].view(*at.shape, heads, -1) for x, at in ((q, q_PR), (k, k_PQ), (v, k_PQ))
    )
    z_PLW = z_NW[(pairs.start[:, None] + longest).clamp(max=len(z_NW) - 1)]
    own = torch.einsum("prhk,pqhk->phrq", q_PRHK, k_PQHK)
    own = own.masked_fill(torch.arange(pairs.query) >= pairs.asks[:, None, None, None], -torch.inf)
    coded = torch.einsum("hprw,plw->phrl", asking_HMW[:, q_PR], z_PLW)
    # q·b_k differs between codes and query rows, so here the softmax does see it.
    coded = coded + torch.einsum("prhk,hk->phr", q_PRHK, biases[0])[..., None]
    coded = coded.masked_fill(longest >= pairs.length[:, None, None, None], -torch.inf)
    both = (torch.cat([own, coded], -1) / math.sqrt(shape.width)).softmax(-1)
    own, coded = both[..., : pairs.query], both[..., pairs.query :]
    gathered = torch.einsum("phrq,pqhk->prhk", own, v_PQHK)
    # Weights of the codes sum to less than 1, and the bias counts with that share.
    gathered = gathered + torch.einsum("phr,hk->prhk", coded.sum(-1), biases[1])
    mean = torch.einsum("phrl,plw->hprw", coded, z_PLW)
    return gathered.flatten(2).flatten(0, 1), mean.flatten(1, 2)


def _gather_cuda(source: _Codes) -> tuple[Tensor, Tensor]:
    import triton

    from decoupled.runtime.cuda.kernels import LOG2_E, attend_codes_kernel

    q, asking_HMW, k, v, z_NW, biases, pairs, shape = source
    rows, codes, heads = q.pair_rows, z_NW.shape[1], shape.heads
    block = 64 if rows > 1 else 16
    own = min(heads, block // rows if rows > 1 else HEADS_AT_ONCE)
    wide = triton.next_power_of_2(codes)
    parts = (wide // 2, wide // 4) if 4 * codes <= 3 * wide and wide >= 64 else (max(16, wide), 0)
    blocks = -(-heads // own)
    out_own = q.query.new_empty(pairs.count * rows, shape.inner)
    out_codes = q.query.new_empty(heads, pairs.count * rows, codes)
    attend_codes_kernel[(pairs.count * blocks,)](
        q.query,
        asking_HMW,
        k.query,
        v.query,
        z_NW,
        biases[0],
        biases[1],
        out_own,
        out_codes,
        pairs.asker,
        pairs.asks,
        pairs.start,
        pairs.length,
        q.query.stride(0),
        asking_HMW.stride(0),
        k.query.stride(0),
        out_codes.stride(0),
        rows,
        k.pair_rows,
        blocks,
        LOG2_E / math.sqrt(shape.width),
        HEADS=heads,
        WIDTH=shape.width,
        CODES=codes,
        Q_SHARED=q.shared,
        K_SHARED=k.shared,
        BH=own,
        BM=block,
        BK=max(16, triton.next_power_of_2(shape.width)),
        BW=parts[0],
        BX=parts[1],
        BQ=max(16, triton.next_power_of_2(pairs.query)),
        BN=CODES_AT_ONCE,
        num_warps=WARPS,
        num_stages=2,
    )
    return out_own, out_codes
