"""States without what their codes repeat: small numbers are more frequent, so a fifth of int4 can go.

Each record is packed by itself, so that any can be read alone. One that would hardly shrink lies as it is,
which its size says. Shapes: T tokens of a record, N of all.
"""

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Sizes = npt.NDArray[np.int64]

ENOUGH = 0.95
"""A record is stored packed only if that takes less than this share of its bytes."""


@cache
def _codec() -> Any:
    # Nothing is found twice, so higher levels only search for longer.
    return pa.Codec("zstd", compression_level=1)


def pack(states: Bytes) -> Bytes:
    """The bytes of a record as they are stored, `states` being `[T, bytes of a token]`."""
    whole = np.ascontiguousarray(states).reshape(-1)
    packed = np.frombuffer(_codec().compress(whole, asbytes=True), np.uint8)
    return packed if len(packed) < ENOUGH * len(whole) else whole


def unpack(stored: Bytes, sizes: Sizes, wholes: Sizes) -> Bytes:
    """Records of `wholes` bytes each that lie in `sizes` bytes each, one after the other."""
    packed = sizes != wholes
    if not packed.any():
        return stored
    out = np.empty(int(wholes.sum()), np.uint8)
    froms, tos = (np.append(0, np.cumsum(x)) for x in (sizes, wholes))
    # What follows each other is unpacked by one call, in half of the time of one for each.
    first = np.flatnonzero(np.diff(packed, prepend=~packed[:1]))
    for a, b in pairwise([*first.tolist(), len(sizes)]):
        piece, room = stored[froms[a] : froms[b]], out[tos[a] : tos[b]]
        room[:] = np.frombuffer(_codec().decompress(piece, len(room)), "u1") if packed[a] else piece
    return out
