"""The names of codecs: stages joined with `+`, a projection perhaps and a quantiser at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from decoupled.errors import InputError

StageKind = Literal["project", "fp32", "fp16", "int8", "int4", "residual"]

KNOWN = "fp32, fp16, int8, int4, residual:2, residual:4, and project:W before one of them"
EXAMPLES = "int8, project:96+int8, project:192+int4, residual:2"
BITS = (2, 4)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One part of a codec's name."""

    kind: StageKind
    argument: int = 0
    """Width of the projection or bits of the residual; 0 where there is none."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.argument}" if self.argument else self.kind


def parse_codec(name: str) -> tuple[Stage, ...]:
    """The stages of a name, or an `InputError` that lists what there is."""
    stages = tuple(_stage(part, name) for part in name.lower().split("+"))
    if stages[-1].kind == "project":
        raise InputError(
            f"codec {name!r} ends with a projection, but something must store what comes out; "
            f"write {canonical(stages)}+int8, or +fp16, +int4, +residual:2"
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
    """The one spelling of those stages."""
    return "+".join(map(str, stages))


def needs_fit(name: str) -> bool:
    """Does that codec have tensors, so that it must be fitted on a sample?"""
    return any(stage.kind in ("project", "residual") for stage in parse_codec(name))


def _stage(part: str, name: str) -> Stage:
    kind, colon, argument = part.strip().partition(":")
    number = int(argument) if argument.isascii() and argument.isdigit() else 0
    match kind:
        case "fp32" | "fp16" | "int8" | "int4" if not colon:
            return Stage(kind=kind)
        case "project":
            if number > 0:
                return Stage(kind=kind, argument=number)
            raise InputError(
                f"codec {name!r}: {part.strip()!r} lacks the width of its output; "
                "write for example project:96"
            )
        case "residual":
            if number in BITS:
                return Stage(kind=kind, argument=number)
            raise InputError(
                f"codec {name!r}: {part.strip()!r} lacks the bits per coordinate; "
                "write residual:2 or residual:4"
            )
    raise InputError(
        f"codec {name!r}: there is no {part.strip()!r}; known are {KNOWN}. Examples: {EXAMPLES}"
    )
