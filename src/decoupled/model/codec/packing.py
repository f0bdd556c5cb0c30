"""Several small codes in one byte: coordinate i is in byte i // n, the low bits first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from decoupled.model.codec.base import Bytes, Floats


def packed_width(width: int, bits: int) -> int:
    """Bytes that `width` codes of `bits` bits take."""
    return -(-width * bits // 8)


def pack_codes(codes_NW: npt.NDArray[np.uint8], bits: int) -> Bytes:
    """Codes below 2**bits as `[N, packed_width]`; the last byte is filled with zeros."""
    rows, width = codes_NW.shape
    per_byte = 8 // bits
    full = np.zeros((rows, packed_width(width, bits) * per_byte), np.uint8)
    full[:, :width] = codes_NW
    packed = full[:, 0::per_byte].copy()
    for place in range(1, per_byte):
        packed |= full[:, place::per_byte] << np.uint8(bits * place)
    return packed


def byte_table(levels: Floats, bits: int) -> Floats:
    """The values of all codes in a byte, for each of the 256 bytes: one lookup per byte."""
    places = np.arange(8 // bits) * bits
    return levels[(np.arange(256)[:, None] >> places) & (2**bits - 1)]


def unpack_codes(packed: Bytes, table: Floats, width: int) -> Floats:
    """`[N, width]` values of the packed codes, read from `byte_table`."""
    return np.take(table, packed, axis=0).reshape(len(packed), -1)[:, :width]
