"""Triton kernels of the CUDA runtime. `ops` holds the same steps in plain torch, and says what they mean.

Every kernel finds its pair's rows from `start` and `length` in device memory, so that one captured graph
serves batches of many shapes. Numbers that change from batch to batch are not specialised on: that would
compile the kernel again.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634


@triton.jit
def weigh(q_MK, k_NK, v_NK, seen_N, scale, peak_M, sum_M, acc_MK):
    # One step of a softmax over keys that come in pieces: what was gathered fades as the peak rises.
    score_MN = tl.where(seen_N[None, :], tl.dot(q_MK, tl.trans(k_NK)), float("-inf"))
    # Online softmax (Milakov and Gimelshein, 2018), as in FlashAttention.
    higher_M = tl.maximum(peak_M, tl.max(score_MN, 1) * scale)
    share_MN = tl.exp2(score_MN * scale - higher_M[:, None])
    fade_M = tl.exp2(peak_M - higher_M)
    sum_M = sum_M * fade_M + tl.sum(share_MN, 1)
    acc_MK = tl.dot(share_MN.to(v_NK.dtype), v_NK, acc_MK * fade_M[:, None])
    return higher_M, sum_M, acc_MK


@triton.jit(
    do_not_specialize=["q_pair", "k_pair", "q_first", "k_first", "moved", "pairs", "blocks"],
    do_not_specialize_on_alignment=["asker", "asks", "start", "length"],
)
def attend_kernel(
    q,
    k,
    v,
    out,
    asker,
    asks,
    start,
    length,
    q_row,
    kv_row,
    out_row,
    q_pair,
    k_pair,
    q_first,
    k_first,
    moved,
    pairs,
    blocks,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PASSAGES: tl.constexpr,
    Q_SHARED: tl.constexpr,
    K_SHARED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    # Programs of one pair and head are neighbours, so that they find its keys in cache.
    number = tl.program_id(0)
    block = number % blocks
    head = (number // blocks) % HEADS
    pair = number // (blocks * HEADS)
    first = tl.load(start + pair)
    tokens = tl.load(length + pair).to(tl.int32)
    query = tl.load(asks + pair).to(tl.int32)
    group = tl.load(asker + pair).to(tl.int32)
    q_own = (group if Q_SHARED else pair) * q_pair
    k_own = (group if K_SHARED else pair) * k_pair
    rows = moved
    if PASSAGES:
        rows = moved + tokens
    if block * BM >= rows:
        return
    # Rows m are the pair's query rows that move, followed by its passage rows.
    m = block * BM + tl.arange(0, BM)
    c = tl.arange(0, PADDED)
    from_m = tl.where(m < moved, q_own + m, q_first + first + (m - moved))
    q_at = q + from_m[:, None] * q_row + head * WIDTH + c[None, :]
    q_MK = tl.load(q_at, mask=(m < rows)[:, None] & (c < WIDTH)[None, :], other=0.0)

    peak_M = tl.full([BM], float("-inf"), tl.float32)
    sum_M = tl.zeros([BM], tl.float32)
    acc_MK = tl.zeros([BM, PADDED], tl.float32)
    # Keys are the query's real rows first, then the passage's.
    keys = query + tokens
    for n0 in range(0, keys, BN):
        n = n0 + tl.arange(0, BN)
        seen = n < keys
        from_n = tl.where(n < query, k_own + n, k_first + first + (n - query))
        at = from_n[:, None] * kv_row + head * WIDTH + c[None, :]
        real = seen[:, None] & (c < WIDTH)[None, :]
        k_NK = tl.load(k + at, mask=real, other=0.0)
        v_NK = tl.load(v + at, mask=real, other=0.0)
        peak_M, sum_M, acc_MK = weigh(q_MK, k_NK, v_NK, seen, scale, peak_M, sum_M, acc_MK)
    # Output rows are packed: query rows of all pairs, then passage rows of all pairs.
    to_m = tl.where(m < moved, pair * moved + m, pairs * moved + first + (m - moved))
    out_at = out + to_m[:, None] * out_row + head * WIDTH + c[None, :]
    # What e4m3 cannot hold becomes the largest that it can.
    done_MK = acc_MK / sum_M[:, None]
    tl.store(
        out_at, done_MK.to(out.dtype.element_ty), mask=(m < rows)[:, None] & (c < WIDTH)[None, :]
    )


@triton.jit(
    do_not_specialize=["rows", "border", "moved", "pair_rows"],
    do_not_specialize_on_alignment=["asker"],
)
def add_norm_kernel(
    change,
    query,
    passage,
    weight,
    bias,
    out,
    asker,
    rows,
    border,
    moved,
    pair_rows,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    BM: tl.constexpr,
    BIAS: tl.constexpr,
    SHARED: tl.constexpr,
):
    # Several rows at a time, so that more of them are on their way from memory.
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.arange(0, BLOCK)
    real = (c < WIDTH)[None, :]
    live = (m < rows)[:, None] & real
    own = m < border
    at = m.to(tl.int64)[:, None] * WIDTH + c[None, :]
    x = tl.load(change + at, mask=live, other=0.0).to(tl.float32)
    # A query row finds its residual in its own pair, or in the query that pairs share.
    group = m // moved
    if SHARED:
        group = tl.load(asker + group, mask=own, other=0).to(tl.int32)
    from_query = (group * pair_rows + m % moved).to(tl.int64)[:, None] * WIDTH + c[None, :]
    x += tl.load(query + from_query, mask=own[:, None] & real, other=0.0).to(tl.float32)
    from_passage = (m - border).to(tl.int64)[:, None] * WIDTH + c[None, :]
    x += tl.load(passage + from_passage, mask=(m >= border)[:, None] & live, other=0.0).to(
        tl.float32
    )
    mean = tl.sum(x, 1) / WIDTH
    # Columns past the width must be 0 again after the mean is taken off, for the variance.
    x = tl.where(real, x - mean[:, None], 0.0)
    variance = tl.sum(x * x, 1) / WIDTH
    weight_C = tl.load(weight + c, mask=c < WIDTH, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(variance + eps)[:, None] * weight_C[None, :]
    if BIAS:
        y += tl.load(bias + c, mask=c < WIDTH, other=0.0).to(tl.float32)[None, :]
    tl.store(out + at, y.to(out.dtype.element_ty), mask=live)


@triton.jit(
    do_not_specialize=["scales_row"],
    do_not_specialize_on_alignment=["scales", "source", "start", "length"],
)
def dequantise_kernel(
    codes,
    scales,
    source,
    start,
    length,
    out,
    codes_row,
    scales_row,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    BT: tl.constexpr,
    BW: tl.constexpr,
):
    pair = tl.program_id(0)
    block = tl.program_id(1)
    tokens = tl.load(length + pair).to(tl.int32)
    if block * BT >= tokens:
        return
    t = block * BT + tl.arange(0, BT)
    live = t < tokens
    row_T = tl.load(source + pair) + t
    # The two bytes of a scale may lie at an odd address, so they are read one by one.
    low = tl.load(scales + row_T * scales_row, mask=live, other=0).to(tl.uint16)
    high = tl.load(scales + row_T * scales_row + 1, mask=live, other=0).to(tl.uint16)
    scale_T = (low | (high << 8)).to(tl.float16, bitcast=True).to(tl.float32)
    to_T = tl.load(start + pair) + t
    for w0 in range(0, WIDTH, BW):
        w = w0 + tl.arange(0, BW)
        real = live[:, None] & (w < WIDTH)[None, :]
        if BITS == 8:
            byte = tl.load(codes + row_T[:, None] * codes_row + w[None, :], mask=real, other=0)
            code_TW = byte.to(tl.int8, bitcast=True).to(tl.float32)
        else:
            at = codes + row_T[:, None] * codes_row + (w // 2)[None, :]
            # int4: two codes in a byte, the first one low, stored plus 8.
            byte = tl.load(at, mask=real, other=0).to(tl.int32)
            code_TW = ((byte >> ((w % 2) * 4)[None, :]) & 15).to(tl.float32) - 8.0
        value_TW = (code_TW * scale_T[:, None]).to(out.dtype.element_ty)
        tl.store(out + to_T[:, None] * WIDTH + w[None, :], value_TW, mask=real)


@triton.jit(do_not_specialize_on_alignment=["start", "length"])
def mean_kernel(x, start, length, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    text = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    first = tl.load(start + text)
    tokens = tl.load(length + text).to(tl.int32)
    total = tl.zeros([BLOCK], tl.float32)
    # One program per text: texts are short, and a sum in a fixed order is reproducible.
    for t in range(tokens):
        total += tl.load(x + (first + t) * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32)
    share = total / tl.maximum(tokens, 1).to(tl.float32)
    tl.store(out + text.to(tl.int64) * WIDTH + c, share, mask=c < WIDTH)
