"""Kinds of token tables, a file each; all of the folder are known."""

from decoupled.model.kinds import load_kinds
from decoupled.model.parts.table.base import TOKENS, Band, Banded, Factorised, Table, WholeTable

load_kinds(__name__, __path__)

__all__ = ["TOKENS", "Band", "Banded", "Factorised", "Table", "WholeTable"]
