"""Codes to states, as the first nodes of the cross component; and codes from bytes, for its inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from openvino import Node
from openvino import opset15 as op

from decoupled.model.codec import CodeLayout
from decoupled.model.codec.base import byte_table, packed_width
from decoupled.runtime.openvino.graph import LoadedLinear, constant, integers, parameter, rows

Array = npt.NDArray[np.generic]

TYPES = {"fp32": "<f4", "fp16": "<f2", "int8": "i1", "int4": "u1", "residual": "u1"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Codes:
    """Nodes of stored passages: the codes as numbers `z_BPC`, and the layer from them to the states."""

    inputs: list[Node]
    z: Node
    restore: LoadedLinear | None


def parameters(layout: CodeLayout) -> Codes:
    """The inputs that hold the codes of a layout, and the values that they stand for."""
    codes = parameter("codes", [-1, -1, _code_width(layout)], TYPES[layout.kind])
    inputs, affine, tables = [codes], layout.restore, layout.residual
    restore = (
        LoadedLinear(weight=np.ascontiguousarray(affine.matrix.T), bias=affine.bias)
        if affine
        else None
    )
    if layout.scale_at is None:
        z = op.convert(codes, "f32") if layout.kind == "fp16" else codes
        return Codes(inputs=inputs, z=z, restore=restore)
    inputs.append(parameter("scales", [-1, -1, 1], "float16"))
    scale = op.convert(inputs[1], "f32")
    if layout.kind == "int8":
        return Codes(inputs=inputs, z=op.multiply(op.convert(codes, "f32"), scale), restore=restore)
    # int4 codes are stored plus 8, so nibble 0 stands for -8.
    levels = tables.levels if tables else np.arange(-8, 8).astype(np.float32)
    z = op.multiply(_unpacked(codes, levels, _bits(layout), layout.width), scale)
    if tables is not None:
        inputs.append(parameter("centroids", [-1, -1], "int32"))
        near = op.gather(constant(tables.centroids), inputs[2], constant(np.int64(0)))
        z = op.add(op.multiply(z, constant(tables.spread)), near)
    return Codes(inputs=inputs, z=z, restore=restore)


def arrays(layout: CodeLayout, bytes_BPX: npt.NDArray[np.uint8]) -> list[Array]:
    """The inputs of `parameters`, cut from padded bytes; views and copies of bytes, no arithmetic."""

    def cut(at: int, dtype: str, count: int = 1) -> Array:
        end = at + count * np.dtype(dtype).itemsize
        # A view of another type needs contiguous bytes.
        return np.ascontiguousarray(bytes_BPX[..., at:end]).view(dtype)

    arrays = [cut(layout.codes_at, TYPES[layout.kind], _code_width(layout))]
    if layout.scale_at is not None:
        arrays.append(cut(layout.scale_at, "<f2"))
    if layout.residual is not None:
        arrays.append(cut(layout.residual.id_at, "<u2")[..., 0].astype(np.int32))
    return arrays


def _code_width(layout: CodeLayout) -> int:
    packed = layout.kind in ("int4", "residual")
    return packed_width(layout.width, _bits(layout)) if packed else layout.width


def _bits(layout: CodeLayout) -> int:
    return layout.residual.bits if layout.residual else 4


def _unpacked(codes_BPX: Node, levels: npt.NDArray[np.float32], bits: int, width: int) -> Node:
    """`[B,P,width]` values of packed codes: one lookup for all the codes of a byte."""
    table = constant(byte_table(levels, bits))
    values = op.gather(table, op.convert(codes_BPX, "i32"), constant(np.int64(0)))
    # The last byte may hold codes that no coordinate has.
    whole = packed_width(width, bits) * (8 // bits)
    flat = op.reshape(values, integers(0, 0, whole), True)
    return flat if whole == width else rows(flat, 0, width, axis=2)
