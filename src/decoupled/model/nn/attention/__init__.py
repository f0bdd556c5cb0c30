"""Attention modules: importing this package registers those of the kinds that public checkpoints have."""

from decoupled.model.nn.attention import disentangled, dot, grouped, relative
from decoupled.model.nn.attention.base import AttentionBlock, AttentionModule, build_attention

__all__ = [
    "AttentionBlock",
    "AttentionModule",
    "build_attention",
    "disentangled",
    "dot",
    "grouped",
    "relative",
]
