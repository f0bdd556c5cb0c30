"""Token ids to vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from decoupled.model.jsonable import LATER
from decoupled.model.parts.norm import NormSpec
from decoupled.model.parts.table import TableSpec


@dataclass(frozen=True, kw_only=True)
class EmbeddingSpec:
    """Token, position and type tables, their norm, and a projection when they are narrower."""

    vocab: int
    width: int
    positions: int = 0
    """Rows of the learned position table; 0 when positions enter in the attention."""
    position_start: int = 0
    """Row of position 0 (RoBERTa starts after the padding row)."""
    types: int = 0
    norm: NormSpec = NormSpec()
    project: Literal["none", "before_norm", "after_norm"] = "none"
    project_bias: bool = True
    table: TableSpec | None = field(default=None, metadata=LATER)
    """How the token table is held; None is one row of `width` per token."""
    bits: Literal[8] | None = field(default=None, metadata=LATER)
    """The token table as int8 codes with a scale per row."""
