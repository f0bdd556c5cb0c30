"""What one query asks of the engine, as a value: so that many can be computed in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from decoupled.errors import InputError
from decoupled.model.tokens import Passage
from decoupled.search.first_stage import FirstStage

CANDIDATES = 100
"""Records that the first stage hands to the cross component."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A query with where its passages come from, and what is wanted of them.

    Passages are those of `ids` and `texts`; with `retrieve`, what the first stage finds in the index.
    """

    query: str
    head: Literal["rank", "span"]
    """Passages in order of relevance, or answers."""
    k: int | None = None
    """How many results; None for all, of given passages."""
    retrieve: bool = False
    first_stage: FirstStage | Literal["auto"] = "auto"
    candidates: int = CANDIDATES
    where: Mapping[str, Any] | None = None
    ids: tuple[str, ...] = ()
    texts: tuple[str | Passage, ...] = ()
    raw: bool = False
    """Logits instead of probabilities."""
    threshold: float = 0.0
    """Leave out answers with a lower score."""

    def __post_init__(self) -> None:
        for name, value in (("k", self.k), ("candidates", self.candidates)):
            if value is not None and value < 1:
                raise InputError(f"{name}={value}; choose 1 or more")
