"""Kinds of attention, a file each; all of the folder are known."""

from decoupled.model.kinds import load_kinds
from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.attention.disentangled import Disentangled, RelativeSpec
from decoupled.model.parts.attention.dot import SelfAttention
from decoupled.model.parts.attention.fixed import PATTERNS, Empty, FixedPatterns, Pattern

load_kinds(__name__, __path__)

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
