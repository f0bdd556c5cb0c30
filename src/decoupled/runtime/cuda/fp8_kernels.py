"""The Triton kernel of `fp8`: a product in eight bits whose result leaves in eight bits."""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = (128, 256, 128)
"""Rows, outputs and inputs that a program computes at a time."""
WARPS, STAGES, PROGRAMS = 8, 3, 1
"""Warps and pipeline stages of a program, and the number of programs per multiprocessor."""


@triton.jit
def gelu_four(x, KIND: tl.constexpr, FAST: tl.constexpr):
    # Four times GELU, for `fp8.HIDDEN` is four.
    if FAST:
        # All of it two at a time in half precision, in which x below -30,000 is that: no infinity times zero.
        four = tl.inline_asm_elementwise(
            """{
            .reg .b32 x, t, a, b;
            mov.b32 a, 0x3a623a62;
            mov.b32 b, 0x28912891;
            mov.b32 t, 0xf753f753;
            max.f16x2 x, $1, t;
            mul.rn.f16x2 t, x, x;
            fma.rn.f16x2 t, t, b, a;
            mul.rn.f16x2 t, t, x;
            tanh.approx.f16x2 t, t;
            add.rn.f16x2 x, x, x;
            fma.rn.f16x2 $0, x, t, x;
            }""",
            "=r,r",
            [x.to(tl.float16)],
            dtype=tl.float16,
            is_pure=True,
            pack=2,
        )
        return four.to(KIND)
    # tanh GELU as x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3).
    u = x * (0.7978845608028654 + 0.035677408136300125 * x * x)
    return tl.minimum(4 * x / (1 + tl.exp(-2 * u)), 448.0).to(KIND)


@triton.jit(do_not_specialize=["rows"])
def linear_gelu_kernel(
    x,
    weight,
    out,
    x_scale,
    scale,
    bias,
    rows,
    outer,
    inner,
    PROGRAMS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    FAST: tl.constexpr,
):
    # As many programs as cores, each a tile after another; neighbours share rows and outputs in cache.
    down, across = tl.cdiv(rows, BM), tl.cdiv(outer, BN)
    for tile in tl.range(tl.program_id(0), down * across, PROGRAMS, flatten=True):
        first = tile // (GROUP * across) * GROUP
        size = min(down - first, GROUP)
        m0 = (first + tile % (GROUP * across) % size) * BM
        n0 = (tile % (GROUP * across) // size) * BN
        # Accumulated in fp32: e4m3 has three bits of mantissa.
        acc_MN = tl.zeros([BM, BN], tl.float32)
        for k0 in range(0, inner, BK):
            acc_MN = tl.dot(x.load([m0, k0]), weight.load([n0, k0]).T, acc_MN)
        m = m0 + tl.arange(0, BM)
        n = n0 + tl.arange(0, BN)
        scale_M = tl.load(x_scale + m, mask=m < rows, other=0.0)
        scale_N = tl.load(scale + n, mask=n < outer, other=0.0)
        bias_N = tl.load(bias + n, mask=n < outer, other=0.0).to(tl.float32)
        # Scales of row and output factor out of the sum, so they are applied once at the end.
        x_MN = acc_MN * scale_M[:, None] * scale_N[None, :] + bias_N[None, :]
        out.store([m0, n0], gelu_four(x_MN, out.dtype, FAST))
