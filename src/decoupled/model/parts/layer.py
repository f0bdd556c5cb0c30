"""A layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from decoupled.model.jsonable import LATER
from decoupled.model.parts.attention import AttentionSpec
from decoupled.model.parts.feed_forward import FeedForwardSpec
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.parts.norm import NormSpec


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One layer. Layers that name the same slot share its parameters."""

    attention: AttentionSpec
    ffn: FeedForwardSpec
    attention_slot: int
    ffn_slot: int
    norm: NormSpec = NormSpec()
    order: Literal["post", "pre"] = "post"
    attention_norm: bool = True
    """ModernBERT's first layer has none: its embedding is already normalised."""
    passage: Literal["advance", "frozen"] = "advance"
    """Above the split: do passage rows move, or only serve as keys and values?"""
    attention_maps: LinearSpec = field(default=LinearSpec(), metadata=LATER)
    ffn_maps: LinearSpec = field(default=LinearSpec(), metadata=LATER)
