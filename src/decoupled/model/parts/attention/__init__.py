"""Kinds of attention, a file each."""

from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.attention.disentangled import Disentangled, RelativeSpec
from decoupled.model.parts.attention.dot import SelfAttention
from decoupled.model.parts.attention.fixed import PATTERNS, Empty, FixedPatterns, Pattern

__all__ = [
    "PATTERNS",
    "Attention",
    "Disentangled",
    "Empty",
    "FixedPatterns",
    "Pattern",
    "RelativeSpec",
    "SelfAttention",
]
