"""Kinds of attention."""

from decoupled.model.parts.attention.disentangled import Disentangled, RelativeSpec
from decoupled.model.parts.attention.dot import SelfAttention
from decoupled.model.parts.attention.fixed import FixedPatterns, Pattern

AttentionSpec = SelfAttention | Disentangled | FixedPatterns

__all__ = [
    "AttentionSpec",
    "Disentangled",
    "FixedPatterns",
    "Pattern",
    "RelativeSpec",
    "SelfAttention",
]
