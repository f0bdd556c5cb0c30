"""The kinds of attention that public checkpoints have; others stand in `decoupled.methods`."""

from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.attention.disentangled import Disentangled, RelativeSpec
from decoupled.model.parts.attention.dot import SelfAttention
from decoupled.model.parts.attention.grouped import Grouped, RotaryScaling
from decoupled.model.parts.attention.relative import Bucketed, Segmented

__all__ = [
    "Attention",
    "Bucketed",
    "Disentangled",
    "Grouped",
    "RelativeSpec",
    "RotaryScaling",
    "Segmented",
    "SelfAttention",
]
