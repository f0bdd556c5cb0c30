"""Triton kernels of one row a pair that attends to all rows of its pair, for each head in its own terms.

First all scores, then what is gathered, some columns at a time: a program that holds whole rows keeps a
device waiting for memory.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["pair_rows", "border", "room"],
    do_not_specialize_on_alignment=["asker", "asks", "start", "length"],
)
def score_rows_kernel(
    asking,
    x,
    scores,
    asker,
    asks,
    start,
    length,
    asking_head,
    asking_pair,
    pair_rows,
    border,
    room,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BH: tl.constexpr,
    BD: tl.constexpr,
    BN: tl.constexpr,
    SHARED: tl.constexpr,
):
    pair = tl.program_id(0)
    own = tl.load(asks + pair).to(tl.int32)
    keys = own + tl.load(length + pair).to(tl.int32)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    # The grid covers the longest pair; this one has fewer keys.
    if tl.program_id(1) * BN >= keys:
        return
    first = tl.load(start + pair)
    begin = (tl.load(asker + pair).to(tl.int32) if SHARED else pair) * pair_rows
    h = tl.arange(0, BH)
    # In 64 bits: pairs x width may exceed 2^31.
    asking_H = asking + h * asking_head + pair.to(tl.int64) * asking_pair
    # Keys are the query's own rows, then the passage's rows, which start after all query rows.
    row_N = tl.where(n < own, begin + n, border + first + (n - own))
    score_NH = tl.zeros([BN, BH], tl.float32)
    for d0 in range(0, WIDTH, BD):
        c = d0 + tl.arange(0, BD)
        real = (n < keys)[:, None] & (c < WIDTH)[None, :]
        x_ND = tl.load(x + row_N[:, None] * WIDTH + c[None, :], mask=real, other=0.0)
        # BH is 16 for the tensor cores; rows of heads that are not there read zeros.
        live = (h < HEADS)[:, None] & (c < WIDTH)[None, :]
        asking_HD = tl.load(asking_H[:, None] + c[None, :], mask=live, other=0.0)
        score_NH = tl.dot(x_ND, tl.trans(asking_HD), score_NH)
    to = scores + (pair.to(tl.int64) * room + n[:, None]) * BH + h[None, :]
    tl.store(to, score_NH * scale, mask=(n < keys)[:, None])


@triton.jit(
    do_not_specialize=["pair_rows", "border", "room"],
    do_not_specialize_on_alignment=["asker", "asks", "start", "length"],
)
def gather_rows_kernel(
    scores,
    x,
    out,
    asker,
    asks,
    start,
    length,
    out_head,
    pair_rows,
    border,
    room,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BH: tl.constexpr,
    BD: tl.constexpr,
    BN: tl.constexpr,
    SHARED: tl.constexpr,
):
    pair = tl.program_id(0)
    own = tl.load(asks + pair).to(tl.int32)
    keys = own + tl.load(length + pair).to(tl.int32)
    first = tl.load(start + pair)
    begin = (tl.load(asker + pair).to(tl.int32) if SHARED else pair) * pair_rows
    h = tl.arange(0, BH)
    c = tl.program_id(1) * BD + tl.arange(0, BD)
    from_H = scores + pair.to(tl.int64) * room * BH + h
    # First the largest score of each head, then the sums.
    peak_H = tl.full([BH], float("-inf"), tl.float32)
    for n0 in range(0, keys, BN):
        n = n0 + tl.arange(0, BN)
        at = from_H[:, None] + n[None, :] * BH
        score_HN = tl.load(at, mask=(n < keys)[None, :], other=float("-inf"))
        peak_H = tl.maximum(peak_H, tl.max(score_HN, 1))
    sum_H = tl.zeros([BH], tl.float32)
    acc_HD = tl.zeros([BH, BD], tl.float32)
    for n0 in range(0, keys, BN):
        n = n0 + tl.arange(0, BN)
        at = from_H[:, None] + n[None, :] * BH
        score_HN = tl.load(at, mask=(n < keys)[None, :], other=float("-inf"))
        share_HN = tl.exp2(score_HN - peak_H[:, None])
        sum_H += tl.sum(share_HN, 1)
        row_N = tl.where(n < own, begin + n, border + first + (n - own))
        real = (n < keys)[:, None] & (c < WIDTH)[None, :]
        x_ND = tl.load(x + row_N[:, None] * WIDTH + c[None, :], mask=real, other=0.0)
        acc_HD = tl.dot(share_HN.to(x_ND.dtype), x_ND, acc_HD)
    live = (h < HEADS)[:, None] & (c < WIDTH)[None, :]
    to = out + h[:, None] * out_head + pair.to(tl.int64) * WIDTH + c[None, :]
    tl.store(to, (acc_HD / sum_H[:, None]).to(out.dtype.element_ty), mask=live)
