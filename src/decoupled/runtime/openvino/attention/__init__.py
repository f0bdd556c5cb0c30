"""Attention as nodes: importing this package registers the kinds that public checkpoints have."""

from decoupled.runtime.openvino.attention import absorbed, disentangled, dot, grouped
from decoupled.runtime.openvino.attention.base import NodeContext, attend

__all__ = ["NodeContext", "absorbed", "attend", "disentangled", "dot", "grouped"]
