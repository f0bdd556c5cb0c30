"""Codes to states, as the first nodes of the cross component; and codes from bytes, for its inputs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from openvino import Node
from openvino import opset15 as op

from decoupled.model.codec import CodeLayout
from decoupled.model.codec.base import GROUP, NIBBLES, packed_width
from decoupled.runtime.openvino.graph import LoadedLinear, constant, integers, parameter, rows

Array = npt.NDArray[np.generic]

TYPES = {"fp32": "<f4", "fp16": "<f2", "int8": "i1", "int8:64": "i1", "int4": "u1"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Codes:
    """Nodes of stored passages: the codes as numbers `z_BPC`, and the layer from them to the states."""

    inputs: list[Node]
    z: Node
    restore: LoadedLinear | None


def parameters(layout: CodeLayout) -> Codes:
    """The inputs that hold the codes of a layout, and the values that they stand for."""
    codes = parameter("codes", [-1, -1, _code_width(layout)], TYPES[layout.kind])
    inputs, affine = [codes], layout.restore
    restore = (
        LoadedLinear(weight=np.ascontiguousarray(affine.matrix.T), bias=affine.bias)
        if affine
        else None
    )
    if layout.scale_at is None:
        z = op.convert(codes, "f32") if layout.kind == "fp16" else codes
        return Codes(inputs=inputs, z=z, restore=restore)
    inputs.append(parameter("scales", [-1, -1, layout.scales], "float16"))
    scale = op.convert(inputs[1], "f32")
    if layout.scales > 1:
        scale = op.gather(scale, constant(np.arange(layout.width) // GROUP), constant(np.int64(2)))
    whole = _unpacked(codes, layout.width) if layout.kind == "int4" else op.convert(codes, "f32")
    return Codes(inputs=inputs, z=op.multiply(whole, scale), restore=restore)


def arrays(layout: CodeLayout, bytes_BPX: npt.NDArray[np.uint8]) -> list[Array]:
    """The inputs of `parameters`, cut from padded bytes; views and copies of bytes, no arithmetic."""

    def cut(at: int, dtype: str, count: int = 1) -> Array:
        end = at + count * np.dtype(dtype).itemsize
        # A view of another type needs contiguous bytes.
        return np.ascontiguousarray(bytes_BPX[..., at:end]).view(dtype)

    arrays = [cut(layout.codes_at, TYPES[layout.kind], _code_width(layout))]
    if layout.scale_at is not None:
        arrays.append(cut(layout.scale_at, "<f2", layout.scales))
    return arrays


def _code_width(layout: CodeLayout) -> int:
    return packed_width(layout.width) if layout.kind == "int4" else layout.width


def _unpacked(codes_BPX: Node, width: int) -> Node:
    """`[B,P,width]` values of int4 codes: one lookup for both codes of a byte."""
    values = op.gather(constant(NIBBLES), op.convert(codes_BPX, "i32"), constant(np.int64(0)))
    # The last byte may hold a code that no coordinate has.
    whole = 2 * packed_width(width)
    flat = op.reshape(values, integers(0, 0, whole), True)
    return flat if whole == width else rows(flat, 0, width, axis=2)
