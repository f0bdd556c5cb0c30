"""Bytes of stored states: of a token, a passage, a corpus, for any codec by name."""

from __future__ import annotations

from dataclasses import dataclass

from decoupled.errors import InputError
from decoupled.model.codec import bytes_per_token, canonical, parse_codec


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
