"""What a codec is: states in, a fixed number of bytes per token out, and a description of them.

Shapes: N tokens of all texts together, D width of the states, W width of the codes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError, WeightsError

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Tensors = Mapping[str, npt.NDArray[np.generic]]
Kind = Literal["fp32", "fp16", "int8", "int8:64", "int4"]

HALF = np.dtype("<f2")
"""Type of stored scales: fp16, little-endian whatever the machine."""
GROUP = 64
"""Values that share a scale in `int8:64`: as many as most heads keep of a key, or of a value."""
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
class CodeLayout:
    """What the bytes of one token mean, for runtimes that decode inside their own graph.

    `int8` codes are signed bytes. Two `int4` codes share a byte, the first one low, each stored plus
    8. Both are `code * scale`; in `int8:64` each 64 codes have a scale of their own.
    """

    kind: Kind
    width: int
    """Coordinates per token before `restore`."""
    codes_at: int
    """First byte of the codes."""
    scale_at: int | None
    """First byte of the fp16 scales, or None where the codes are floats."""
    restore: Affine | None
    """The map from codes to states; None where they are the same."""

    @property
    def scales(self) -> int:
        """How many scales a token has."""
        return scales_of(self.kind, self.width)


def float_tensor(tensors: Tensors, name: str, shape: tuple[int, ...]) -> Floats:
    """The finite float32 tensor of that name and shape."""
    if name not in tensors:
        have = ", ".join(sorted(tensors)) or "none"
        raise WeightsError(f"the codec lacks the tensor {name!r} (it has: {have}); fit it again")
    value = np.asarray(tensors[name])
    if value.shape != shape:
        raise WeightsError(
            f"tensor {name!r} of the codec has the shape {list(value.shape)}, expected {list(shape)}; "
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


def scales_of(kind: Kind, width: int) -> int:
    """How many fp16 scales a token of so many codes has."""
    return -(-width // GROUP) if kind == "int8:64" else int(kind in ("int8", "int4"))


def packed_width(width: int) -> int:
    """Bytes that `width` codes of four bits take; the last byte may be filled in part."""
    return -(-width // 2)


NIBBLES = (np.arange(256)[:, None] >> np.array([0, 4]) & 15).astype(np.float32) - np.float32(8)
"""The values of both int4 codes in a byte, `[256, 2]`: decoding is then one lookup per byte."""
