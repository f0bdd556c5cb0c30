"""Attention modules, a file per kind; importing them fills the registry of the builder."""

from decoupled.model.nn.attention.base import AttentionBlock, AttentionModule, build_attention
from decoupled.model.nn.attention.disentangled import DisentangledAttention
from decoupled.model.nn.attention.dot import DotProductAttention
from decoupled.model.nn.attention.fixed import PatternedAttention

__all__ = [
    "AttentionBlock",
    "AttentionModule",
    "DisentangledAttention",
    "DotProductAttention",
    "PatternedAttention",
    "build_attention",
]
