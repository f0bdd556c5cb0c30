"""Codecs from their names: fitted on a sample, or loaded with the tensors that a fit left."""

from __future__ import annotations

import numpy as np

from decoupled.errors import InputError, WeightsError
from decoupled.model.codec.base import Codec, Floats, Tensors
from decoupled.model.codec.chain import Chain, Quantiser, check_finite
from decoupled.model.codec.names import Stage, canonical, needs_fit, parse_codec
from decoupled.model.codec.project import Projection, principal, projection_from
from decoupled.model.codec.residual import fit_residual, residual_from
from decoupled.model.codec.scalar import FloatQuantiser, ScaledQuantiser
from decoupled.model.states import States


def fit_codec(
    name: str, sample: States, *, seed: int = 0, projection: Projection | None = None
) -> Codec:
    """The codec of that name for states like the sample; only its width counts for most names.

    A learned projection takes the place of the principal components. Time grows with the sample's
    tokens, and for `residual` with their square: 100,000 tokens are plenty.
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
    last = stages[-1]
    if last.kind == "residual":
        z_NW = pair.down(x_ND) if pair else x_ND
        quantiser: Quantiser = fit_residual(z_NW, bits=last.argument, seed=seed)
    else:
        quantiser = _scalar(last, _code_width(stages, width))
    return Chain(name=canonical(stages), width=width, projection=pair, quantiser=quantiser)


def build_codec(name: str, *, width: int, tensors: Tensors) -> Codec:
    """The codec with that name, width and `tensors()`; anything else is a `WeightsError`."""
    stages = parse_codec(name)
    code_width = _code_width(stages, width)
    pair = None
    if stages[0].kind == "project":
        pair = projection_from(tensors, width=width, code_width=code_width)
    last = stages[-1]
    if last.kind == "residual":
        quantiser: Quantiser = residual_from(tensors, width=code_width, bits=last.argument)
    else:
        quantiser = _scalar(last, code_width)
    codec = Chain(name=canonical(stages), width=width, projection=pair, quantiser=quantiser)
    if surplus := sorted(set(tensors) - set(codec.tensors())):
        raise WeightsError(
            f"codec {codec.name} has no use for the tensors {', '.join(surplus)}; "
            "give the name of the codec that saved them"
        )
    return codec


def _fit_projection(
    stages: tuple[Stage, ...],
    x_ND: Floats,
    seed: int,
    given: Projection | None,
) -> Projection | None:
    if stages[0].kind != "project":
        if given is not None:
            raise InputError(
                f"codec {canonical(stages)!r} has no place for a projection; "
                f"write project:{given.width}+{stages[-1]}"
            )
        return None
    width, code_width = x_ND.shape[1], _code_width(stages, x_ND.shape[1])
    if given is None:
        pair = principal(x_ND, code_width)
    else:
        pair = projection_from(given.tensors(), width=width, code_width=code_width)
    # At 8 bits and more the loss of the projection itself hides what a rotation would gain.
    return pair.rotated(seed) if stages[-1].kind in ("int4", "residual") else pair


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


def _scalar(stage: Stage, width: int) -> FloatQuantiser | ScaledQuantiser:
    match stage.kind:
        case "fp32" | "fp16":
            return FloatQuantiser(kind=stage.kind, width=width)
        case "int8" | "int4":
            return ScaledQuantiser(kind=stage.kind, width=width)
    raise AssertionError(stage)
