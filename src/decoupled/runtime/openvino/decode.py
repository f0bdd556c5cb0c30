"""Codes to states, as the first nodes of the cross component; and codes from bytes, for its inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from openvino import Node
from openvino import opset15 as op

from decoupled.model.codec import Layout
from decoupled.model.codec.base import byte_table, packed_width
from decoupled.runtime.openvino.graph import Linear, constant, integers, parameter

Array = npt.NDArray[np.generic]

TYPES = {"fp32": "float32", "fp16": "float16", "int8": "int8", "int4": "uint8", "residual": "uint8"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Codes:
    """Nodes that stand for stored passages: `z_BPC`, and the layer from it to the states."""

    inputs: list[Node]
    z: Node
    restore: Linear | None


def parameters(layout: Layout) -> Codes:
    """The inputs that hold the codes of a layout, and the values that they stand for."""
    codes = parameter("codes", [-1, -1, _code_width(layout)], TYPES[layout.kind])
    inputs, restore = [codes], None
    if layout.restore is not None:
        restore = Linear(
            weight=np.ascontiguousarray(layout.restore.matrix.T), bias=layout.restore.bias
        )
    if layout.scale_at is None:
        z = op.convert(codes, "f32") if layout.kind == "fp16" else codes
        return Codes(inputs=inputs, z=z, restore=restore)
    scale_BP1 = parameter("scales", [-1, -1, 1], "float16")
    inputs.append(scale_BP1)
    scale = op.convert(scale_BP1, "f32")
    if layout.kind == "int8":
        return Codes(inputs=inputs, z=op.multiply(op.convert(codes, "f32"), scale), restore=restore)
    levels, bits = np.arange(-8, 8).astype(np.float32), 4
    if layout.residual is not None:
        levels, bits = layout.residual.levels, layout.residual.bits
    z = op.multiply(_unpacked(codes, levels, bits, layout.width), scale)
    if layout.residual is not None:
        ids_BP = parameter("centroids", [-1, -1], "int32")
        inputs.append(ids_BP)
        near = op.gather(constant(layout.residual.centroids), ids_BP, constant(np.int64(0)))
        z = op.add(op.multiply(z, constant(layout.residual.spread)), near)
    return Codes(inputs=inputs, z=z, restore=restore)


def arrays(layout: Layout, bytes_BPX: npt.NDArray[np.uint8]) -> list[Array]:
    """The inputs of `parameters`, cut from padded bytes; views and copies of bytes, no arithmetic."""
    end = layout.codes_at + _code_bytes(layout)
    codes = np.ascontiguousarray(bytes_BPX[..., layout.codes_at : end])
    dtype = {"fp32": "<f4", "fp16": "<f2", "int8": "i1"}.get(layout.kind, "u1")
    found: list[Array] = [codes.view(dtype)]
    if layout.scale_at is not None:
        at = layout.scale_at
        found.append(np.ascontiguousarray(bytes_BPX[..., at : at + 2]).view("<f2"))
    if layout.residual is not None:
        at = layout.residual.id_at
        ids = np.ascontiguousarray(bytes_BPX[..., at : at + 2]).view("<u2")
        found.append(ids[..., 0].astype(np.int32))
    return found


def _code_width(layout: Layout) -> int:
    return layout.width if layout.kind in ("fp32", "fp16", "int8") else _code_bytes(layout)


def _code_bytes(layout: Layout) -> int:
    match layout.kind:
        case "fp32":
            return 4 * layout.width
        case "fp16":
            return 2 * layout.width
        case "int8":
            return layout.width
        case _:
            return packed_width(layout.width, layout.residual.bits if layout.residual else 4)


def _unpacked(codes_BPX: Node, levels: npt.NDArray[np.float32], bits: int, width: int) -> Node:
    """`[B,P,width]` values of packed codes: one lookup for all the codes of a byte."""
    table = constant(byte_table(levels, bits))
    values = op.gather(table, op.convert(codes_BPX, "i32"), constant(np.int64(0)))
    whole = packed_width(width, bits) * (8 // bits)
    flat = op.reshape(values, integers(0, 0, whole), True)
    if whole == width:
        return flat
    return op.slice(flat, integers(0), integers(width), integers(1), integers(2))
