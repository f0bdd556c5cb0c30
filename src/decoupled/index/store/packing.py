"""States without what their codes repeat: small numbers are more frequent, so a fifth of int4 can go.

Each record is packed by itself, so that any can be read alone. One that would hardly shrink lies as it is,
which its size says. Shapes: T tokens of a record, N of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]

ENOUGH = 0.95
"""What is not smaller by this factor is not worth the unpacking."""


@cache
def _codec() -> Any:
    # Nothing is found twice, so higher levels only search for longer.
    return pa.Codec("zstd", compression_level=1)


def pack(states: Bytes) -> Bytes:
    """The bytes of a record as they are stored, `states` being `[T, bytes of a token]`."""
    whole = np.ascontiguousarray(states).reshape(-1)
    packed = np.frombuffer(_codec().compress(whole, asbytes=True), np.uint8)
    return packed if len(packed) < ENOUGH * len(whole) else whole


def unpack(stored: Bytes, sizes: Sequence[int], wholes: Sequence[int], out: Bytes) -> list[int]:
    """Fill `out` with records of `wholes` bytes each, stored in `sizes` bytes; which cannot be unpacked?"""
    bad, at, to = [], 0, 0
    for number, (size, whole) in enumerate(zip(sizes, wholes, strict=True)):
        piece = stored[at : at + size]
        if size != whole:
            try:
                piece = np.frombuffer(_codec().decompress(piece, whole), np.uint8)
            except OSError:
                bad.append(number)
                piece = np.zeros(whole, np.uint8)
        out[to : to + whole] = piece
        at, to = at + size, to + whole
    return bad
