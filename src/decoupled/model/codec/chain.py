"""The codec itself: an affine stage or none, then a quantiser."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from decoupled.errors import InputError
from decoupled.model.codec.base import Bytes, Floats, Layout
from decoupled.model.codec.project import Projection
from decoupled.model.codec.residual import ResidualQuantiser
from decoupled.model.codec.scalar import FloatQuantiser, ScaledQuantiser
from decoupled.model.states import Encoded, States

Quantiser = FloatQuantiser | ScaledQuantiser | ResidualQuantiser

ENCODE_ROWS = 256
"""Every matrix product of encoding has this many rows, whatever the last one holds after the text:
the order in which a product sums may depend on its shape, and batch mates must not change a byte."""
DECODE_ROWS = 4096
"""Enough for the matrix product to run at full speed, few enough to bound the scratch memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """States ↔ bytes, through the projection and the quantiser that its name says."""

    name: str
    width: int
    projection: Projection | None
    quantiser: Quantiser

    @property
    def bytes_per_token(self) -> int:
        """Bytes that each token takes, scale and centroid included."""
        return self.quantiser.bytes_per_token

    @property
    def layout(self) -> Layout:
        """What the bytes mean."""
        quantiser = self.quantiser
        return Layout(
            kind=quantiser.kind,
            width=quantiser.width,
            codes_at=0,
            scale_at=None if isinstance(quantiser, FloatQuantiser) else quantiser.scale_at,
            restore=self.projection.restore if self.projection else None,
            residual=quantiser.tables if isinstance(quantiser, ResidualQuantiser) else None,
        )

    def encode(self, states: States) -> Encoded:
        """The bytes of each token; states that are not finite are an `InputError`."""
        values = states.values
        if values.shape[1:] != (self.width,):
            raise InputError(
                f"states have the shape {list(values.shape)}, but this {self.name} was made for "
                f"width {self.width}; use a codec of the model that made the states"
            )
        encoded = np.empty((len(values), self.bytes_per_token), np.uint8)
        block_ND = np.zeros((ENCODE_ROWS, self.width), np.float32)
        for start in range(0, len(values), ENCODE_ROWS):
            rows = values[start : start + ENCODE_ROWS]
            block_ND[: len(rows)] = rows
            check_finite(block_ND, states)
            encoded[start : start + len(rows)] = self._pack(block_ND)[: len(rows)]
        return Encoded(encoded, states.lengths)

    def decode(self, encoded: Encoded, out: Floats | None = None) -> States:
        """The states, written to the first rows of `out` where it is given."""
        codes = self._codes(encoded)
        states_ND = self._buffer(len(codes), out)
        restore = self._restore
        # The last column stays 1 and meets the bias, so that one product does both.
        shape = (min(len(codes), DECODE_ROWS), self.quantiser.width + 1)
        block = None if restore is None else np.ones(shape, np.float32)
        for start in range(0, len(codes), DECODE_ROWS):
            rows = slice(start, start + DECODE_ROWS)
            if block is None or restore is None:
                self.quantiser.unpack(codes[rows], states_ND[rows])
            else:
                part = block[: len(codes[rows])]
                self.quantiser.unpack(codes[rows], part[:, :-1])
                np.matmul(part, restore, out=states_ND[rows])
        return States(states_ND, encoded.lengths)

    def tensors(self) -> dict[str, Floats]:
        """What `build_codec` needs besides the name and the width."""
        projected = self.projection.tensors() if self.projection else {}
        return projected | self.quantiser.tensors()

    def _pack(self, block_ND: Floats) -> Bytes:
        # A product that overflows is refused by the quantiser, which says by how much.
        with np.errstate(over="ignore", invalid="ignore"):
            z_NW = self.projection.down(block_ND) if self.projection else block_ND
            return self.quantiser.pack(z_NW)

    @cached_property
    def _restore(self) -> Floats | None:
        if self.projection is None:
            return None
        return np.vstack([self.projection.up_weight.T, self.projection.up_bias])

    def _codes(self, encoded: Encoded) -> Bytes:
        values = encoded.values
        if values.dtype != np.uint8 or values.shape[1:] != (self.bytes_per_token,):
            raise InputError(
                f"encoded tokens are {values.dtype} of shape {list(values.shape)}, but {self.name} "
                f"at width {self.width} has {self.bytes_per_token} bytes a token; decode them with "
                "the codec that made them"
            )
        return np.ascontiguousarray(values, np.uint8)

    def _buffer(self, tokens: int, out: Floats | None) -> Floats:
        if out is None:
            return np.empty((tokens, self.width), np.float32)
        fits = out.ndim == 2 and len(out) >= tokens and out.shape[1] == self.width
        if not fits or out.dtype != np.float32 or not out.flags.writeable:
            raise InputError(
                f"out is {out.dtype} of shape {list(out.shape)}, expected float32 of at least "
                f"[{tokens}, {self.width}] that may be written to; give a larger buffer, or none"
            )
        return out[:tokens]


def check_finite(values_ND: Floats, states: States) -> None:
    """Refuse a part of `states` that holds a NaN or an infinity; say where the first one is."""
    if np.isfinite(values_ND).all():
        return
    finite_N = np.isfinite(np.asarray(states.values, np.float32)).all(axis=1)
    row = int(np.flatnonzero(~finite_N)[0])
    text = int(np.searchsorted(np.cumsum(states.lengths), row, side="right"))
    raise InputError(
        f"the states of text {text} are not finite at token {row - int(states.starts[text])}; "
        "look for a fault in the model, or compute them in fp32"
    )
