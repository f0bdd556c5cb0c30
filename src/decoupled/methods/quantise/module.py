"""Matrices and rows of tables as integer codes.

Shape suffixes: N rows of a batch, I inputs, O outputs, G groups of columns, V rows of a table.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.model.parts.linear import LinearSpec

TOP = {8: 127, 4: 7}
"""The largest code of a symmetric grid, by bits."""


class QuantisedLinear(nn.Module):
    """Weights on a symmetric integer grid. With integer inputs the product itself is of integers."""

    def __init__(self, spec: LinearSpec, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        assert spec.bits is not None
        self.spec = spec
        self.inputs = inputs
        group = spec.group or inputs
        packed = inputs if spec.bits == 8 else -(-inputs // 2)
        kind = torch.int8 if spec.bits == 8 else torch.uint8
        self.codes: Tensor
        self.scale_OG: Tensor
        self.register_buffer("codes", torch.zeros(outputs, packed, dtype=kind))
        self.register_buffer("scale_OG", torch.ones(outputs, -(-inputs // group)))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        if spec.inputs == "static":
            self.input_scale: Tensor
            self.register_buffer("input_scale", torch.ones(1))

    def whole(self) -> Tensor:
        """`[O,I]` the weights that the codes stand for."""
        scale_OI = self.scale_OG.repeat_interleave(self.spec.group or self.inputs, 1)
        return self._codes().to(scale_OI.dtype) * scale_OI[:, : self.inputs]

    def _codes(self) -> Tensor:
        return self.codes if self.spec.bits == 8 else unpack(self.codes, self.inputs)

    def forward(self, x: Tensor) -> Tensor:
        if self.spec.inputs == "float":
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return F.linear(x, self.whole().to(x.dtype), bias)
        x_NI = x.reshape(-1, self.inputs).float()
        if self.spec.inputs == "dynamic":
            step = x_NI.abs().amax(1, keepdim=True).clamp(min=1e-12) / TOP[8]
        else:
            step = self.input_scale.float()
        codes_NI = (x_NI / step).round_().clamp_(-TOP[8], TOP[8]).to(torch.int8)
        # y = s_x·s_w ⊙ (q_x q_wᵀ) + b, with the product in integers.
        y_NO = integer_product(codes_NI, self._codes()) * (step * self.scale_OG.float().T)
        if self.bias is not None:
            y_NO = y_NO + self.bias.float()
        return y_NO.to(x.dtype).view(*x.shape[:-1], -1)


class QuantisedRows(nn.Module):
    """Rows of vectors as int8 codes with a scale each."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.codes: Tensor
        self.scale_V1: Tensor
        self.register_buffer("codes", torch.zeros(rows, width, dtype=torch.int8))
        self.register_buffer("scale_V1", torch.ones(rows, 1))

    def forward(self, ids: Tensor) -> Tensor:
        scale = F.embedding(ids, self.scale_V1)
        return self.codes[ids].to(scale.dtype) * scale


@cache
def adds_whole() -> bool:
    """Whether products of bytes are exact here; without VNNI two are added in 16 bits, which overflow."""
    most = torch.full((32, 64), TOP[8], dtype=torch.int8)
    return bool((torch._int_mm(most, most.T) == 64 * TOP[8] ** 2).all())


def integer_product(a_NI: Tensor, b_OI: Tensor) -> Tensor:
    """`[N,O]` in fp32 of two int8 matrices, on integer kernels where they take the shapes."""
    if not a_NI.is_cuda and adds_whole():
        return torch._int_mm(a_NI, b_OI.T).float()
    rows, whole = len(a_NI), not (a_NI.shape[1] % 8 or len(b_OI) % 8)
    if not whole or not a_NI.is_cuda:
        # Codes up to 127 are exact in any float, and so is their product up to rounding of the sum.
        with torch.autocast("cuda", enabled=False):
            return F.linear(a_NI.float(), b_OI.float())
    # The kernel takes more than 16 rows only.
    if rows <= 16:
        a_NI = F.pad(a_NI, (0, 0, 0, 32 - rows))
    return torch._int_mm(a_NI, b_OI.T)[:rows].float()


def encode(weight_OI: Tensor, bits: int, group: int = 0) -> tuple[Tensor, Tensor]:
    """Codes `[O,I]` as int8 and scales `[O,G]` of the nearest symmetric grid, by the largest value."""
    outputs, inputs = weight_OI.shape
    size = group or inputs
    padded = F.pad(weight_OI.float(), (0, -inputs % size)).view(outputs, -1, size)
    scale_OG = padded.abs().amax(-1).clamp(min=1e-12) / TOP[bits]
    codes = (padded / scale_OG[..., None]).round().clamp(-TOP[bits], TOP[bits]).to(torch.int8)
    return codes.view(outputs, -1)[:, :inputs].contiguous(), scale_OG


def pack(codes_OI: Tensor) -> Tensor:
    """Two codes of 4 bits in a byte, the first one low."""
    low_high = (F.pad(codes_OI, (0, codes_OI.shape[1] % 2)).to(torch.int16) & 15).to(torch.uint8)
    return low_high[:, 0::2] | (low_high[:, 1::2] << 4)


def unpack(packed: Tensor, inputs: int) -> Tensor:
    """The codes that `pack` packed, as int8."""
    both = torch.stack([packed & 15, packed >> 4], -1).flatten(1)[:, :inputs].to(torch.int8)
    # Two's complement of four bits: 8..15 stand for -8..-1.
    return torch.where(both > 7, both - 16, both)
