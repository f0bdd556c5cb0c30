"""Token tables as nodes, a file per kind; importing all of the folder fills the registry."""

from decoupled.model.kinds import load_kinds
from decoupled.runtime.openvino.table.base import table_rows, token_rows

load_kinds(__name__, __path__)

__all__ = ["table_rows", "token_rows"]
