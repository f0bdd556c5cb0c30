"""Attention as nodes, a file per kind; importing them fills the registry."""

from decoupled.runtime.openvino.attention import disentangled, dot, fixed
from decoupled.runtime.openvino.attention.base import Context, attend

__all__ = ["Context", "attend", "disentangled", "dot", "fixed"]
