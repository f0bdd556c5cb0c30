"""Modules of token tables, a file per kind; importing all of the folder fills the registry of the builder."""

from decoupled.model.kinds import load_kinds
from decoupled.model.nn.table.base import build_rows, build_table

load_kinds(__name__, __path__)

__all__ = ["build_rows", "build_table"]
