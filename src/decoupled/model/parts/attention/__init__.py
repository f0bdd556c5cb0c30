"""The kinds of attention that public checkpoints have; others stand in `decoupled.methods`."""

from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.attention.disentangled import Disentangled, RelativeSpec
from decoupled.model.parts.attention.dot import SelfAttention

__all__ = ["Attention", "Disentangled", "RelativeSpec", "SelfAttention"]
