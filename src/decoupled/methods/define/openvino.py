"""Narrow token tables under group linear layers: folded into a whole table when the graph is made."""

import numpy as np
import openvino as ov
from openvino import Node
from openvino import opset15 as op

from decoupled.methods.define.part import GroupTable
from decoupled.methods.group_nodes import grouped
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.table import TOKENS
from decoupled.runtime.openvino.graph import Floats, Graph, constant, core, parameter
from decoupled.runtime.openvino.table.base import table_rows, token_rows

ROWS = 4096
"""The number of rows that are widened at a time."""


@token_rows.register
def _(kind: GroupTable, graph: Graph, spec: EmbeddingSpec, ids_BT: Node, position_T: Node) -> Node:
    return op.gather(constant(folded(kind, graph, spec)), ids_BT, constant(np.int64(0)))


def folded(kind: GroupTable, graph: Graph, spec: EmbeddingSpec) -> Floats:
    """`[V,D]`: what the table gives for every id."""
    ids_1V = parameter("ids", [1, -1], "int32")
    narrow = table_rows(graph, f"{TOKENS}.table", ids_1V)
    wide = grouped(graph, f"{TOKENS}.unit", kind.unit(spec.width), narrow)
    # In fp32: this runs once, and its result is the table that everything reads.
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    unit = core().compile_model(ov.Model([op.result(wide)], [ids_1V]), "CPU", settings)
    starts = range(0, spec.vocab, ROWS)
    ids = (np.arange(n, min(n + ROWS, spec.vocab), dtype=np.int32)[None] for n in starts)
    return np.concatenate([np.array(unit([some])[0][0]) for some in ids])
