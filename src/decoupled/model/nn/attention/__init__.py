"""Attention modules, a file per kind; importing all of the folder fills the registry of the builder."""

from decoupled.model.kinds import load_kinds
from decoupled.model.nn.attention.base import AttentionBlock, AttentionModule, build_attention

load_kinds(__name__, __path__)

__all__ = ["AttentionBlock", "AttentionModule", "build_attention"]
