"""The codec itself: its name, which says an affine stage or none and then a quantiser, and what they do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from decoupled.errors import InputError, WeightsError
from decoupled.model.codec.base import GROUP, Bytes, CodeLayout, Floats, Kind, Tensors
from decoupled.model.codec.project import Projection, principal, projection_from
from decoupled.model.codec.scalar import FloatQuantiser, ScaledQuantiser
from decoupled.model.states import Encoded, States

Quantiser = FloatQuantiser | ScaledQuantiser
StageKind = Literal["project"] | Kind

NAMES = "fp32, fp16, int8, int8:64, int4, and project:W before one of them"
EXAMPLES = "int8, project:96+int8, project:192+int4"

ENCODE_ROWS = 256
"""Every matrix product of encoding has this many rows, whatever the last one holds after the text:
the order in which a product sums may depend on its shape, and batch mates must not change a byte."""
DECODE_ROWS = 4096
"""Enough for the matrix product to run at full speed, few enough to bound the scratch memory."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One part of a codec's name."""

    kind: StageKind
    argument: int = 0
    """Width of the projection; 0 for a quantiser."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.argument}" if self.argument else self.kind


def parse_codec(name: str) -> tuple[Stage, ...]:
    """The stages of a name, or an `InputError` that lists what there is."""
    stages = tuple(_stage(part, name) for part in name.lower().split("+"))
    if stages[-1].kind == "project":
        raise InputError(
            f"codec {name!r} ends with a projection, but something must store what comes out; "
            f"write {canonical(stages)}+int8, or +fp16, +int4"
        )
    for stage in stages[:-1]:
        if stage.kind != "project":
            raise InputError(
                f"codec {name!r} has {stage} before its end, but a quantiser comes last; "
                f"write {stage} alone, or project:96+{stage}"
            )
    if len(stages) > 2:
        raise InputError(
            f"codec {name!r} projects {len(stages) - 1} times, which one projection can do; "
            f"write {stages[-2]}+{stages[-1]}"
        )
    return stages


def canonical(stages: tuple[Stage, ...]) -> str:
    """The canonical name of these stages."""
    return "+".join(map(str, stages))


def needs_fit(name: str) -> bool:
    """Whether that codec has tensors, so that it must be fitted on a sample."""
    return parse_codec(name)[0].kind == "project"


def _stage(part: str, name: str) -> Stage:
    kind, colon, argument = part.strip().partition(":")
    # `isdigit` alone also takes digits such as superscripts, which `int` refuses.
    number = int(argument) if argument.isascii() and argument.isdigit() else 0
    match kind:
        case "fp32" | "fp16" | "int8" | "int4" if not colon:
            return Stage(kind=kind)
        case "int8" if number == GROUP:
            return Stage(kind="int8:64")
        case "project":
            if number > 0:
                return Stage(kind=kind, argument=number)
            raise InputError(
                f"codec {name!r}: {part.strip()!r} lacks the width of its output; "
                "write for example project:96"
            )
    raise InputError(
        f"codec {name!r}: there is no {part.strip()!r}; known are {NAMES}. Examples: {EXAMPLES}"
    )


def fit_codec(
    name: str, sample: States, *, seed: int = 0, projection: Projection | None = None
) -> Codec:
    """Fit the codec of that name on a sample of states; names without tensors need only its width.

    A learned projection takes the place of the principal components.
    """
    stages = parse_codec(name)
    x_ND = sample.values.astype(np.float32, copy=False)
    if x_ND.ndim != 2 or not x_ND.shape[1]:
        raise InputError(
            f"the sample has the shape {list(x_ND.shape)}, expected [tokens, width]; "
            "give the states of some passages"
        )
    if needs_fit(name):
        check_finite(x_ND, sample)
    width = x_ND.shape[1]
    pair = _fit_projection(stages, x_ND, seed, projection)
    quantiser = _quantiser(stages, width)
    return Codec(name=canonical(stages), width=width, projection=pair, quantiser=quantiser)


def build_codec(name: str, *, width: int, tensors: Tensors) -> Codec:
    """The codec with that name, width and `tensors()`; anything else is a `WeightsError`."""
    stages = parse_codec(name)
    quantiser, pair = _quantiser(stages, width), None
    if stages[0].kind == "project":
        pair = projection_from(tensors, width=width, code_width=quantiser.width)
    codec = Codec(name=canonical(stages), width=width, projection=pair, quantiser=quantiser)
    if surplus := sorted(set(tensors) - set(codec.tensors())):
        raise WeightsError(
            f"codec {codec.name} has no use for the tensors {', '.join(surplus)}; "
            "give the name of the codec that saved them"
        )
    return codec


def bytes_per_token(name: str, width: int) -> int:
    """Bytes that the codec of that name takes for a token whose states are so wide; no tensors are needed."""
    return _quantiser(parse_codec(name), width).bytes_per_token


def _fit_projection(
    stages: tuple[Stage, ...], x_ND: Floats, seed: int, learned: Projection | None
) -> Projection | None:
    if stages[0].kind != "project":
        if learned is not None:
            raise InputError(
                f"the model projects to {learned.width} values, and codec {canonical(stages)!r} has no "
                f"place for a projection; write project:{learned.width}+{stages[-1]}"
            )
        return None
    width, code_width = x_ND.shape[1], _code_width(stages, x_ND.shape[1])
    if learned is None:
        pair = principal(x_ND, code_width)
    else:
        pair = projection_from(learned.tensors(), width=width, code_width=code_width)
    # At 8 bits and more the loss of the projection itself hides what a rotation would gain.
    return pair.rotated(seed) if stages[-1].kind == "int4" else pair


def _code_width(stages: tuple[Stage, ...], width: int) -> int:
    if width < 1:
        raise InputError(f"width={width}, but states have at least 1 coordinate")
    if stages[0].kind != "project":
        return width
    if stages[0].argument > width:
        raise InputError(
            f"codec {canonical(stages)!r} projects to {stages[0].argument}, but the states are "
            f"{width} wide; choose project:1 to project:{width}"
        )
    return stages[0].argument


def _quantiser(stages: tuple[Stage, ...], width: int) -> Quantiser:
    kind, code_width = stages[-1].kind, _code_width(stages, width)
    if kind == "fp32" or kind == "fp16":
        return FloatQuantiser(kind=kind, width=code_width)
    assert kind != "project"  # `parse_codec` refuses it at the end
    return ScaledQuantiser(kind=kind, width=code_width)


@dataclass(frozen=True, kw_only=True, eq=False)
class Codec:
    """States ↔ bytes, through the projection and the quantiser that its name says.

    Texts are encoded one by one: batch mates change no byte.
    """

    name: str
    """The canonical name, as `build_codec` takes it."""
    width: int
    """Width of the states that go in and come out."""
    projection: Projection | None
    quantiser: Quantiser

    @property
    def bytes_per_token(self) -> int:
        """Bytes that each token takes, scale included."""
        return self.quantiser.bytes_per_token

    @property
    def layout(self) -> CodeLayout:
        """The layout of the bytes of one token."""
        quantiser = self.quantiser
        return CodeLayout(
            kind=quantiser.kind,
            width=quantiser.width,
            codes_at=0,
            scale_at=quantiser.scale_at,
            restore=self.projection.restore if self.projection else None,
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
        # One block of a fixed shape is reused; rows after the text's end hold old values and are
        # cut off.
        block_ND = np.zeros((ENCODE_ROWS, self.width), np.float32)
        for start in range(0, len(values), ENCODE_ROWS):
            rows = values[start : start + ENCODE_ROWS]
            block_ND[: len(rows)] = rows
            check_finite(block_ND, states)
            encoded[start : start + len(rows)] = self._pack(block_ND)[: len(rows)]
        return Encoded(encoded, states.lengths)

    def decode(self, encoded: Encoded) -> States:
        """The states of each token."""
        codes = self._codes(encoded)
        states_ND = np.empty((len(codes), self.width), np.float32)
        restore = self._restore
        # The last column stays 1 and meets the bias, so that one product does both.
        shape = (min(len(codes), DECODE_ROWS), self.quantiser.width + 1)
        block = None if restore is None else np.ones(shape, np.float32)
        # In blocks, so that the scratch memory does not grow with the number of tokens.
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
        """The tensors that `build_codec` needs besides the name and the width."""
        return self.projection.tensors() if self.projection else {}

    def _pack(self, block_ND: Floats) -> Bytes:
        # A product that overflows is refused by the quantiser, which says by how much.
        with np.errstate(over="ignore", invalid="ignore"):
            z_NW = self.projection.down(block_ND) if self.projection else block_ND
            return self.quantiser.pack(z_NW)

    @cached_property
    def _restore(self) -> Floats | None:
        if self.projection is None:
            return None
        # [W+1,D]: the bias is the last row, and meets the column of ones.
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


def check_finite(values_ND: Floats, states: States) -> None:
    """Raise `InputError` where values hold a NaN or an infinity; name the text and token of the first one."""
    if np.isfinite(values_ND).all():
        return
    # The values may be one block of the states; the message needs the position among all of them.
    finite_N = np.isfinite(np.asarray(states.values, np.float32)).all(axis=1)
    row = int(np.flatnonzero(~finite_N)[0])
    text = int(np.searchsorted(np.cumsum(states.lengths), row, side="right"))
    raise InputError(
        f"the states of text {text} are not finite at token {row - int(states.starts[text])}; "
        "look for a fault in the model, or compute them in fp32"
    )
