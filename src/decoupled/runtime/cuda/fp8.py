"""Products of numbers of eight bits, e4m3: half the bytes, twice the arithmetic, three bits of precision.

They pay only where the rounding rides on what comes before: the norm writes its rows in both types, and the
product before the activation writes nothing else. The plain forms are the definition, as in `ops`. Shapes: M
rows, C columns, F outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
"""The largest number that e4m3 can hold."""
HIDDEN, ATTENDED = 4.0, 16.0
"""By these an activation and what attention gathers are multiplied before they are rounded, so that all from
0.004 to 112 and from 0.001 to 28 keep their three bits."""
LEAST_ROWS, LEAST_ATTENDED = 8192, 65_536
"""Rows from which fp8 is faster than bf16: of products in general, and of what attention gathers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounded:
    """Rows in fp8: their values are `values · scale`."""

    values: Tensor
    """`[M,C]` rows in e4m3."""
    scale: Tensor
    """`[M,1]` fp32 scale of each row."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear8:
    """A linear layer in fp8: `x @ (weight · scale').T + bias`."""

    weight: Tensor
    """`[F,C]` weights in e4m3."""
    scale: Tensor
    """`[1,F]` fp32 scale of each output."""
    bias: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> Linear8:
        """A matrix whose outputs have a scale each."""
        rounded = quantise(weight)
        return cls(weight=rounded.values, scale=rounded.scale.T.contiguous(), bias=bias)

    def rows(self, first: int, last: int) -> Linear8:
        """The layer with some of its outputs; views, no copies."""
        own = slice(first, last)
        return Linear8(weight=self.weight[own], scale=self.scale[:, own], bias=self.bias[own])


def quantise(x_MC: Tensor) -> Rounded:
    """Rows in fp8, each scaled so that its largest number is the largest of e4m3."""
    x = x_MC.float()
    # A row of zeros would divide by zero.
    scale = x.abs().amax(1, keepdim=True).clamp(min=1e-12) / LARGEST
    return Rounded(values=(x / scale).to(E4M3), scale=scale)


def times(x_MC: Tensor, gain: float) -> Rounded:
    """Rows in fp8, all multiplied by the same gain; rows that are fp8 already only get their scale."""
    if x_MC.dtype != E4M3:
        x_MC = (x_MC.float() * gain).clamp(-LARGEST, LARGEST).to(E4M3)
    scale = torch.full((len(x_MC), 1), 1 / gain, dtype=torch.float32, device=x_MC.device)
    return Rounded(values=x_MC, scale=scale)


def linear(x: Rounded, by: Linear8, dtype: torch.dtype) -> Tensor:
    """The linear layer of each row, in the compute type."""
    if not x.values.is_cuda:
        return (x.values.float() * x.scale @ (by.weight.float().T * by.scale) + by.bias).to(dtype)
    return torch._scaled_mm(
        x.values,
        by.weight.T,
        x.scale,
        by.scale,
        bias=by.bias,
        out_dtype=dtype,
        use_fast_accum=True,
    )


def linear_gelu(x: Rounded, by: Linear8) -> Rounded:
    """The linear layer followed by GELU, rounded to fp8 in the same kernel."""
    if x.values.is_cuda:
        return times(_linear_gelu_cuda(x, by), HIDDEN)
    hidden = torch.nn.functional.gelu(linear(x, by, torch.float32), approximate="tanh")
    return times(hidden, HIDDEN)


def _linear_gelu_cuda(x: Rounded, by: Linear8) -> Tensor:
    import triton
    from triton.tools.tensor_descriptor import TensorDescriptor

    from decoupled.runtime.cuda import fp8_kernels as kernels

    (rows, inner), outer = x.values.shape, len(by.weight)
    out = torch.empty(rows, outer, dtype=E4M3, device=x.values.device)
    m, n, k = kernels.BLOCK
    programs = triton.cdiv(rows, m) * triton.cdiv(outer, n)
    # One persistent program per multiprocessor; more would only wait for each other.
    cores = 1
    if x.values.is_cuda:
        cores = torch.cuda.get_device_properties(x.values.device).multi_processor_count
    programs = min(programs, cores * kernels.PROGRAMS)
    kernels.linear_gelu_kernel[(programs,)](
        TensorDescriptor.from_tensor(x.values, [m, k]),
        TensorDescriptor.from_tensor(by.weight, [n, k]),
        TensorDescriptor.from_tensor(out, [m, n]),
        x.scale,
        by.scale,
        by.bias,
        rows,
        outer,
        inner,
        PROGRAMS=programs,
        BM=m,
        BN=n,
        BK=k,
        GROUP=8,
        FAST=x.values.is_cuda,
        num_warps=kernels.WARPS,
        num_stages=kernels.STAGES,
    )
    return out
