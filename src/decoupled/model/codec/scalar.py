"""Quantisers without tensors: plain floats, and integers with one fp16 scale per token or per 64 values.

The scale is rounded to fp16 before the codes are computed, so that decoding multiplies by the very
number that encoding divided by: the error is at most half a step, and encoding what was decoded
gives the same bytes.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from decoupled.model.codec.base import (
    GROUP,
    HALF,
    LEAST_SCALE,
    MOST_SCALE,
    NIBBLES,
    Bytes,
    Floats,
    check_reach,
    packed_width,
    scales_of,
)

FLOATS: dict[str, np.dtype[Any]] = {"fp32": np.dtype("<f4"), "fp16": HALF}


@dataclass(frozen=True, kw_only=True)
class FloatQuantiser:
    """`fp32` and `fp16`: the numbers themselves, little-endian."""

    kind: Literal["fp32", "fp16"]
    width: int
    scale_at: None = None

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token."""
        return self.width * FLOATS[self.kind].itemsize

    def pack(self, z_NW: Floats) -> Bytes:
        """The bytes of each row."""
        stored = FLOATS[self.kind]
        # Above it a cast to fp16 would silently store infinity.
        limit = MOST_SCALE if self.kind == "fp16" else np.finfo(np.float32).max
        check_reach(np.abs(z_NW).max(axis=1), limit, self.kind)
        return z_NW.astype(stored, order="C").view(np.uint8)

    def unpack(self, codes: Bytes, out_NW: Floats) -> None:
        """The rows of those bytes, into `out_NW`."""
        np.copyto(out_NW, codes.view(FLOATS[self.kind]))


@dataclass(frozen=True, kw_only=True)
class ScaledQuantiser:
    """`int8` and `int4`: symmetric codes, then the token's fp16 scale `max|z| / steps`, or one per group."""

    kind: Literal["int8", "int8:64", "int4"]
    width: int

    @property
    def steps(self) -> int:
        """The largest code."""
        return 7 if self.kind == "int4" else 127

    @property
    def scale_at(self) -> int:
        """First byte of the scale: it follows the codes."""
        return packed_width(self.width) if self.kind == "int4" else self.width

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token."""
        return self.scale_at + scales_of(self.kind, self.width) * HALF.itemsize

    def pack(self, z_NW: Floats) -> Bytes:
        """The bytes of each row."""
        steps = np.float32(self.steps)
        step = GROUP if self.kind == "int8:64" else self.width
        largest_NS = np.maximum.reduceat(np.abs(z_NW), np.arange(0, self.width, step), axis=1)
        check_reach(largest_NS, steps * MOST_SCALE, self.kind)
        # The floor keeps the division of an all-zero token finite.
        scale_NS = np.maximum(largest_NS / steps, LEAST_SCALE).astype(HALF)
        # Division by the rounded scale may give a little more than steps; rint brings it back to
        # steps.
        codes_NW = np.rint(z_NW / self._each(scale_NS)).astype(np.int8)
        encoded = np.empty((len(z_NW), self.bytes_per_token), np.uint8)
        encoded[:, self.scale_at :] = scale_NS.view(np.uint8)
        if self.kind != "int4":
            encoded[:, : self.scale_at] = codes_NW.view(np.uint8)
        else:
            # Stored plus 8, so that nibble 0 means -8; half of a last byte may stay empty.
            nibbles = np.zeros((len(z_NW), 2 * self.scale_at), np.uint8)
            nibbles[:, : self.width] = codes_NW + np.int8(8)
            encoded[:, : self.scale_at] = nibbles[:, ::2] | nibbles[:, 1::2] << np.uint8(4)
        return encoded

    def unpack(self, codes: Bytes, out_NW: Floats) -> None:
        """The rows of those bytes, into `out_NW`."""
        # The scale lies at the end of each token's bytes; the view needs these to be contiguous.
        scale_NW = self._each(codes[:, self.scale_at :].view(HALF))
        if self.kind != "int4":
            np.multiply(codes[:, : self.scale_at].view(np.int8), scale_NW, out=out_NW)
        else:
            pairs = np.take(NIBBLES, codes[:, : self.scale_at], axis=0).reshape(len(codes), -1)
            np.multiply(pairs[:, : self.width], scale_NW, out=out_NW)

    def _each(self, scale_NS: npt.NDArray[np.float16]) -> Floats:
        """The scale of each value, or one column for all."""
        scales = scale_NS.astype(np.float32)
        return scales if self.kind != "int8:64" else np.repeat(scales, GROUP, 1)[:, : self.width]
