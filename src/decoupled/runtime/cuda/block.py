"""Encoded passages on the device, and how their bytes become rows of the compute type.

Shapes: R rows of the block, N rows that a batch takes of it, W width of the codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoupled.model.codec import CodeLayout
from decoupled.model.codec.base import GROUP
from decoupled.model.states import Encoded
from decoupled.runtime.cuda.batch import Ints, Pairs

KERNEL_BITS = {"int8": 8, "int4": 4}
"""Codecs that the kernel decodes, with their bits; the others go through plain torch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StateBlock:
    """Encoded rows with codes and tail apart: rows of codes alone are aligned, so they load faster."""

    codes: Tensor
    """`[R, bytes]` uint8 codes of each row."""
    tail: Tensor
    """`[R, bytes]` uint8: the scale, where there is one."""

    @classmethod
    def of(cls, bytes_RB: Tensor, layout: CodeLayout) -> StateBlock:
        """Two views of rows as a codec stores them."""
        at = bytes_RB.shape[1] if layout.scale_at is None else layout.scale_at
        return cls(codes=bytes_RB[:, :at], tail=bytes_RB[:, at:])


@dataclass(frozen=True, eq=False)
class KeptBlock:
    """Passages whose codes stay on the device; `select` costs nothing there.

    Made by `CudaRuntime.keep`, and read by that runtime alone. It stands wherever `Encoded` does.
    """

    block: StateBlock
    starts: Ints
    lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, which: npt.NDArray[np.int64] | list[int]) -> KeptBlock:
        """The passages at these indices, in that order."""
        chosen = np.asarray(which, np.int64)
        return KeptBlock(self.block, self.starts[chosen], self.lengths[chosen])

    @classmethod
    def concat(cls, parts: Sequence[KeptBlock]) -> KeptBlock:
        """Passages of one block, in order."""
        starts, lengths = ([getattr(p, name) for p in parts] for name in ("starts", "lengths"))
        return cls(parts[0].block, np.concatenate(starts), np.concatenate(lengths))


def keep(encoded: Encoded, layout: CodeLayout, device: torch.device) -> KeptBlock:
    """Copy encoded passages to the device, in pieces, so that no second copy of them is needed."""
    values = encoded.values
    at = values.shape[1] if layout.scale_at is None else layout.scale_at
    codes = torch.empty(len(values), at, dtype=torch.uint8, device=device)
    tail = torch.empty(len(values), values.shape[1] - at, dtype=torch.uint8, device=device)
    # 256 MiB at a time: a piece lies on the device twice while it is cut in two.
    step = max(1, (256 << 20) // max(1, values.shape[1]))
    for first in range(0, len(values), step):
        piece = torch.from_numpy(np.ascontiguousarray(values[first : first + step])).to(device)
        codes[first : first + len(piece)] = piece[:, :at]
        tail[first : first + len(piece)] = piece[:, at:]
    return KeptBlock(StateBlock(codes=codes, tail=tail), encoded.starts, encoded.lengths)


class Decoder:
    """Decodes bytes to codes as numbers, before any matrix restores the states."""

    def __init__(self, layout: CodeLayout) -> None:
        self.layout = layout

    def __call__(self, block: StateBlock, pairs: Pairs, out: Tensor) -> Tensor:
        """Write the rows of these passages to `out_NW`."""
        if block.codes.is_cuda and self.layout.kind in KERNEL_BITS:
            return _dequantise_cuda(block, pairs, KERNEL_BITS[self.layout.kind], out)
        owner_N = pairs.owner_N()
        row_N = pairs.source[owner_N] + pairs.place_N(owner_N)
        # Rows of padding pairs may point past the block; what they read is never used.
        row_N = row_N.clamp(max=len(block.codes) - 1)
        return out.copy_(self.plain(block.codes[row_N], block.tail[row_N]))

    def plain(self, codes: Tensor, tail: Tensor) -> Tensor:
        """`[N,W]` fp32 of the given bytes; what the kernel must agree with."""
        kind, width = self.layout.kind, self.layout.width
        if kind == "fp32":
            return codes.view(torch.float32)
        if kind == "fp16":
            return codes.view(torch.float16).float()
        scale_NS = tail.contiguous().view(torch.float16).float()  # the view needs contiguous bytes
        if kind == "int8:64":
            scale_NS = scale_NS.repeat_interleave(GROUP, 1)[:, :width]
        if kind != "int4":
            return codes.view(torch.int8).float() * scale_NS
        # int4: two codes in a byte, the first one low, stored plus 8.
        nibbles = torch.stack([codes & 15, codes >> 4], 2).flatten(1)[:, :width]
        return (nibbles.float() - 8) * scale_NS


def _dequantise_cuda(block: StateBlock, pairs: Pairs, bits: int, out: Tensor) -> Tensor:
    from decoupled.runtime.cuda.kernels import dequantise_kernel

    # One program decodes 16 tokens of one pair; passages shorter than the longest leave early.
    rows = 16
    grid = (pairs.count, max(1, -(-pairs.longest // rows)))
    dequantise_kernel[grid](
        block.codes,
        block.tail,
        pairs.source,
        pairs.start,
        pairs.length,
        out,
        block.codes.stride(0),
        block.tail.stride(0),
        WIDTH=out.shape[1],
        BITS=bits,
        BT=rows,
        BW=128,
        num_warps=4,
    )
    return out
