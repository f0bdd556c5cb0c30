"""Token tables as modules."""

from decoupled.model.nn.table.base import build_table

__all__ = ["build_table"]
