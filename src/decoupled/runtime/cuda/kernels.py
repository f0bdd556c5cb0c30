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
    do_not_specialize=["rows", "pair_rows", "blocks"],
    do_not_specialize_on_alignment=["asker", "asks", "start", "length"],
)
def attend_codes_kernel(
    q,
    asking,
    k,
    v,
    z,
    key_bias,
    value_bias,
    out_own,
    out_codes,
    asker,
    asks,
    start,
    length,
    q_row,
    asking_head,
    kv_row,
    out_head,
    rows,
    pair_rows,
    blocks,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    CODES: tl.constexpr,
    Q_SHARED: tl.constexpr,
    K_SHARED: tl.constexpr,
    BH: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    BW: tl.constexpr,
    BX: tl.constexpr,
    BQ: tl.constexpr,
    BN: tl.constexpr,
):
    # A program holds the rows of BH heads of one pair, so that they read its codes together. Of a code, BW
    # numbers and then BX more, which are fewer than the next power of two.
    pair = tl.program_id(0) // blocks
    head = (tl.program_id(0) % blocks) * BH
    first = tl.load(start + pair)
    tokens = tl.load(length + pair).to(tl.int32)
    query = tl.load(asks + pair).to(tl.int32)
    group = tl.load(asker + pair).to(tl.int32)
    m = tl.arange(0, BM)
    c = tl.arange(0, BK)
    w = tl.arange(0, BW)
    head_M = head + m // rows
    live = (m // rows < BH) & (head_M < HEADS)
    from_M = (group if Q_SHARED else pair) * rows + m % rows
    real_MK = live[:, None] & (c < WIDTH)[None, :]
    part_MK = head_M[:, None] * WIDTH + c[None, :]
    q_MK = tl.load(q + from_M[:, None] * q_row + part_MK, mask=real_MK, other=0.0)
    # In 64 bits: heads x rows x codes may exceed 2^31.
    at = head_M[:, None] * asking_head + from_M[:, None].to(tl.int64) * CODES + w[None, :]
    real_MW = live[:, None] & (w < CODES)[None, :]
    asking_MW = tl.load(asking + at, mask=real_MW, other=0.0)
    if BX:
        x = BW + tl.arange(0, BX)
        beyond = head_M[:, None] * asking_head + from_M[:, None].to(tl.int64) * CODES + x[None, :]
        real_MX = live[:, None] & (x < CODES)[None, :]
        asking_MX = tl.load(asking + beyond, mask=real_MX, other=0.0)
        acc_MX = tl.zeros([BM, BX], tl.float32)
    # q·b_k, the constant that all codes share and the query's own keys do not.
    bias_MK = tl.load(key_bias + part_MK, mask=real_MK, other=0.0)
    extra_M = tl.sum(q_MK.to(tl.float32) * bias_MK.to(tl.float32), 1)

    # Its query's own rows, whose keys and values are a head's own.
    n = tl.arange(0, BQ)
    from_n = (group if K_SHARED else pair) * pair_rows + n
    score_MN = tl.zeros([BM, BQ], tl.float32)
    # One product per head: rows of other heads are masked out of each.
    for j in tl.range(BH, num_stages=1):
        there = tl.where(head + j < HEADS, query, 0)
        real = (n < there)[:, None] & (c < WIDTH)[None, :]
        part = from_n[:, None] * kv_row + (head + j) * WIDTH + c[None, :]
        k_NK = tl.load(k + part, mask=real, other=0.0)
        score_MN += tl.where((m // rows == j)[:, None], tl.dot(q_MK, tl.trans(k_NK)), 0.0)
    score_MN = tl.where((n < query)[None, :], score_MN * scale, float("-inf"))
    peak_M = tl.max(score_MN, 1)
    share_MN = tl.exp2(score_MN - peak_M[:, None])
    sum_M = tl.sum(share_MN, 1)
    acc_MK = tl.zeros([BM, BK], tl.float32)
    for j in tl.range(BH, num_stages=1):
        there = tl.where(head + j < HEADS, query, 0)
        real = (n < there)[:, None] & (c < WIDTH)[None, :]
        part = from_n[:, None] * kv_row + (head + j) * WIDTH + c[None, :]
        v_NK = tl.load(v + part, mask=real, other=0.0)
        own_MN = tl.where((m // rows == j)[:, None], share_MN, 0.0)
        acc_MK = tl.dot(own_MN.to(v_NK.dtype), v_NK, acc_MK)

    # The passage's codes, which are keys and values of all heads.
    codes_M = tl.zeros([BM], tl.float32)
    acc_MW = tl.zeros([BM, BW], tl.float32)
    for n0 in range(0, tokens, BN):
        t = n0 + tl.arange(0, BN)
        real_NW = (t < tokens)[:, None] & (w < CODES)[None, :]
        z_NW = tl.load(z + (first + t)[:, None] * CODES + w[None, :], mask=real_NW, other=0.0)
        score = tl.dot(asking_MW, tl.trans(z_NW))
        if BX:
            real_NX = (t < tokens)[:, None] & (x < CODES)[None, :]
            z_NX = tl.load(z + (first + t)[:, None] * CODES + x[None, :], mask=real_NX, other=0.0)
            score = tl.dot(asking_MX, tl.trans(z_NX), score)
        # Scores of codes join the softmax that the query rows began.
        score = (score + extra_M[:, None]) * scale
        score = tl.where((t < tokens)[None, :], score, float("-inf"))
        higher_M = tl.maximum(peak_M, tl.max(score, 1))
        share = tl.exp2(score - higher_M[:, None])
        fade_M = tl.exp2(peak_M - higher_M)
        codes_M = codes_M * fade_M + tl.sum(share, 1)
        sum_M = sum_M * fade_M
        acc_MK = acc_MK * fade_M[:, None]
        acc_MW = tl.dot(share.to(z_NW.dtype), z_NW, acc_MW * fade_M[:, None])
        if BX:
            acc_MX = tl.dot(share.to(z_NW.dtype), z_NX, acc_MX * fade_M[:, None])
        peak_M = higher_M
    # One normaliser for both: query rows and codes are weighed in one softmax.
    whole_M = 1 / (sum_M + codes_M)
    to_M = pair * rows + m % rows
    bias_MK = tl.load(value_bias + part_MK, mask=real_MK, other=0.0).to(tl.float32)
    own = (acc_MK + codes_M[:, None] * bias_MK) * whole_M[:, None]
    to = out_own + to_M[:, None] * (HEADS * WIDTH) + part_MK
    tl.store(to, own.to(out_own.dtype.element_ty), mask=real_MK)
    at = head_M[:, None] * out_head + to_M[:, None].to(tl.int64) * CODES + w[None, :]
    mean_MW = (acc_MW * whole_M[:, None]).to(out_codes.dtype.element_ty)
    tl.store(out_codes + at, mean_MW, mask=real_MW)
    if BX:
        at = head_M[:, None] * out_head + to_M[:, None].to(tl.int64) * CODES + x[None, :]
        mean_MX = (acc_MX * whole_M[:, None]).to(out_codes.dtype.element_ty)
        tl.store(out_codes + at, mean_MX, mask=real_MX)


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
