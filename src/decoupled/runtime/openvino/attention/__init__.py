"""Attention as nodes, a file per kind; importing all of the folder fills the registry."""

from decoupled.model.kinds import load_kinds
from decoupled.runtime.openvino.attention.base import Context, attend

load_kinds(__name__, __path__)

__all__ = ["Context", "attend"]
