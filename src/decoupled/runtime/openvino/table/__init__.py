"""Token tables as nodes."""

from decoupled.runtime.openvino.table.base import table_rows, token_rows

__all__ = ["table_rows", "token_rows"]
