"""Token tables: the whole one, and what other kinds in `decoupled.methods` build on."""

from decoupled.model.parts.table.base import TOKENS, Band, Table, WholeTable

__all__ = ["TOKENS", "Band", "Table", "WholeTable"]
