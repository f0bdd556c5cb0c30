"""What a codec is: states in, a fixed number of bytes per token out, and a description of them.

Shapes: N tokens of all texts together, D width of the states, W width of the codes, K centroids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError, WeightsError
from decoupled.model.states import Encoded, States

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Tensors = Mapping[str, npt.NDArray[np.generic]]
Kind = Literal["fp32", "fp16", "int8", "int4", "residual"]

HALF = np.dtype("<f2")
"""Type of stored scales: fp16, little-endian whatever the machine."""
LEAST_SCALE = np.float32(2.0**-14)
"""The least normal fp16. Below it a rounded scale would be off by more than the codes can bear."""
MOST_SCALE = np.float32(65504.0)
"""The largest finite fp16: a scale or a state beyond it cannot be stored."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Affine:
    """How codes become states: `states_ND = codes_NW @ matrix_WD + bias_D`."""

    matrix: Floats
    bias: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualTables:
    """Tables of the residual codec.

    Before `restore`, a token is `z_NW = levels[code_NW] * scale_N * spread_W + centroids_KW[id_N]`.
    """

    bits: int
    id_at: int
    """First byte of the centroid's number, an unsigned 16-bit little-endian integer."""
    centroids: Floats
    levels: Floats
    """The values of the 2**bits codes, in ascending order."""
    spread: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class CodeLayout:
    """What the bytes of one token mean, for runtimes that decode inside their own graph.

    `int8` codes are signed bytes. `int4` and `residual` codes are packed, the low bits of a byte
    first; an `int4` code is stored plus 8. Both scaled kinds are `code * scale`.
    """

    kind: Kind
    width: int
    """Coordinates per token before `restore`."""
    codes_at: int
    """First byte of the codes."""
    scale_at: int | None
    """First byte of the fp16 scale, or None where the codes are floats."""
    restore: Affine | None
    """The map from codes to states; None where they are the same."""
    residual: ResidualTables | None = None


class Codec(Protocol):
    """States ↔ bytes. Texts are encoded one by one: batch mates change no byte."""

    @property
    def name(self) -> str:
        """The canonical name, as `build_codec` takes it."""

    @property
    def width(self) -> int:
        """Width of the states that go in and come out."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that each token takes, scale and centroid included."""

    @property
    def layout(self) -> CodeLayout:
        """The layout of the bytes of one token."""

    def encode(self, states: States) -> Encoded:
        """The bytes of each token; states that are not finite are an `InputError`."""

    def decode(self, encoded: Encoded, out: Floats | None = None) -> States:
        """The states, written to the first rows of `out` where it is given."""

    def tensors(self) -> dict[str, Floats]:
        """The tensors that `build_codec` needs besides the name and the width."""


def float_tensor(tensors: Tensors, name: str, shape: tuple[int | None, ...]) -> Floats:
    """The finite float32 tensor of that name; a None in `shape` is any length above zero."""
    if name not in tensors:
        have = ", ".join(sorted(tensors)) or "none"
        raise WeightsError(f"the codec lacks the tensor {name!r} (it has: {have}); fit it again")
    value = np.asarray(tensors[name])
    # A None in the shape is a length that the file may choose, such as the number of centroids.
    fits = value.ndim == len(shape) and all(
        have > 0 if want is None else have == want
        for have, want in zip(value.shape, shape, strict=True)
    )
    if not fits:
        want = [("any" if n is None else n) for n in shape]
        raise WeightsError(
            f"tensor {name!r} of the codec has the shape {list(value.shape)}, expected {want}; "
            "was it made for another model or codec?"
        )
    if value.dtype != np.float32 or not np.isfinite(value).all():
        raise WeightsError(
            f"tensor {name!r} of the codec is {value.dtype}, expected finite float32; fit it again"
        )
    return np.ascontiguousarray(value, np.float32)


def check_reach(largest: Floats, limit: np.float32, kind: str) -> None:
    """Raise `InputError` for values beyond what the stored number can hold; a NaN fails too."""
    # Written as `not <=`, since every comparison with NaN is false.
    if not (largest <= limit).all():
        raise InputError(
            f"states reach {float(largest.max()):.3g}, but {kind} holds at most {limit:.3g}; "
            "use the codec fp32, or look for a fault in the model"
        )


# Several small codes in one byte: coordinate i is in byte i // n, the low bits first ---------------


def packed_width(width: int, bits: int) -> int:
    """Bytes that `width` codes of `bits` bits take."""
    # Ceiling division: the last byte may be filled in part.
    return -(-width * bits // 8)


def pack_codes(codes_NW: npt.NDArray[np.uint8], bits: int) -> Bytes:
    """Codes below 2**bits as `[N, packed_width]`; the last byte is filled with zeros."""
    rows, width = codes_NW.shape
    per_byte = 8 // bits
    full = np.zeros((rows, packed_width(width, bits) * per_byte), np.uint8)
    full[:, :width] = codes_NW
    # The strided slices are the codes that share a byte: first codes, second codes and so on.
    packed = full[:, 0::per_byte].copy()
    for place in range(1, per_byte):
        packed |= full[:, place::per_byte] << np.uint8(bits * place)
    return packed


def byte_table(levels: Floats, bits: int) -> Floats:
    """The values of all codes in a byte, `[256, 8 // bits]`: decoding is then one lookup per byte."""
    places = np.arange(8 // bits) * bits
    return levels[(np.arange(256)[:, None] >> places) & (2**bits - 1)]


def unpack_codes(packed: Bytes, table: Floats, width: int) -> Floats:
    """`[N, width]` values of the packed codes, read from `byte_table`."""
    return np.take(table, packed, axis=0).reshape(len(packed), -1)[:, :width]
