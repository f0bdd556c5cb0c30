"""Attention as nodes: importing this package registers the kinds that public checkpoints have."""

from decoupled.runtime.openvino.attention import absorbed, disentangled, dot
from decoupled.runtime.openvino.attention.base import Context, attend

__all__ = ["Context", "absorbed", "attend", "disentangled", "dot"]
