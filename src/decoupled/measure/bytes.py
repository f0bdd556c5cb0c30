"""Bytes of stored states: of a token, a passage, a corpus, for any codec by name."""

from __future__ import annotations

from dataclasses import dataclass

from decoupled.errors import InputError
from decoupled.model.codec.names import Stage, canonical, parse_codec
from decoupled.model.codec.packing import packed_width

SCALE = 2
"""Bytes of the fp16 scale that a scaled code carries."""
CENTROID = 2
"""Bytes of the number of a residual's centroid."""


@dataclass(frozen=True, kw_only=True)
class Storage:
    """What the states of a corpus take. Text, offsets and vectors come on top (docs/results/states.md)."""

    passages: int
    tokens: float
    """Mean tokens of a passage, specials included."""
    width: int
    codec: str = "int8"

    def __post_init__(self) -> None:
        if self.passages < 1 or self.tokens <= 0:
            raise InputError(
                f"passages={self.passages}, tokens={self.tokens}; give at least one passage with tokens"
            )
        object.__setattr__(self, "codec", canonical(parse_codec(self.codec)))
        bytes_per_token(self.codec, self.width)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return bytes_per_token(self.codec, self.width)

    @property
    def passage_bytes(self) -> float:
        """Bytes of a passage of mean length."""
        return self.tokens * self.token_bytes

    @property
    def total_bytes(self) -> float:
        """Bytes of the corpus."""
        return self.passages * self.passage_bytes


def bytes_per_token(codec: str, width: int) -> int:
    """Bytes that a codec of that name takes for a token whose states are so wide."""
    *before, last = parse_codec(codec)
    if width < 1:
        raise InputError(f"width={width}; states have at least 1 coordinate")
    if before and before[0].argument > width:
        raise InputError(
            f"codec {codec!r} projects to {before[0].argument}, but the states are {width} wide; "
            f"choose project:1 to project:{width}"
        )
    return _last_stage(last, before[0].argument if before else width)


def _last_stage(stage: Stage, width: int) -> int:
    match stage.kind:
        case "fp32":
            return 4 * width
        case "fp16":
            return 2 * width
        case "int8":
            return width + SCALE
        case "int4":
            return packed_width(width, 4) + SCALE
        case _:
            return packed_width(width, stage.argument) + SCALE + CENTROID
