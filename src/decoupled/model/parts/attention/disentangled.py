"""Attention that looks at relative positions (DeBERTa)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from decoupled.model.parts.norm import NormSpec


@dataclass(frozen=True, kw_only=True)
class Disentangled:
    """DeBERTa's attention: content scores plus content-position and position-content scores."""

    heads: int
    head_width: int
    terms: tuple[Literal["c2p", "p2c"], ...]
    buckets: int
    """Half the rows of the relative table that are used."""
    max_distance: int
    """Distance at which the logarithmic buckets end; 0 means linear buckets."""
    shared: bool = True
    """Relative positions pass through the content's own query and key projections."""
    kind: Literal["disentangled"] = "disentangled"


@dataclass(frozen=True, kw_only=True)
class RelativeSpec:
    """DeBERTa's table of relative positions, shared by all layers."""

    rows: int
    norm: NormSpec | None = None
