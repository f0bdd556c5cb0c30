"""What token tables have for each id, as nodes: the registry by kind, and kinds that are sums of bands."""

from functools import reduce, singledispatch

import numpy as np
from openvino import Node
from openvino import opset15 as op

from decoupled.errors import InputError
from decoupled.model import annex
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.table import Table, WholeTable
from decoupled.runtime.openvino.graph import Graph, constant, integers


def table_rows(graph: Graph, name: str, index: Node) -> Node:
    """Rows of a table at these indices; the table may be kept as codes with a scale per row."""
    axis = constant(np.int64(0))
    if f"{name}.codes" not in graph.tensors:
        return op.gather(constant(graph.array(f"{name}.weight")), index, axis)
    codes = op.gather(constant(graph.tensors[f"{name}.codes"]), index, axis)
    scale = op.gather(constant(graph.array(f"{name}.scale_V1")), index, axis)
    return op.multiply(op.convert(codes, "f32"), scale)


@singledispatch
def token_rows(
    kind: Table, graph: Graph, spec: EmbeddingSpec, ids_BT: Node, position_T: Node
) -> Node:
    """`[B,T,D]` rows of a token table for each id, as registered here for its kind."""
    if annex.registers(token_rows, kind, "openvino"):
        return token_rows(kind, graph, spec, ids_BT, position_T)
    raise InputError(f"the openvino runtime lacks {kind.kind} token tables; choose torch")


@token_rows.register(WholeTable)
def bands_of(
    kind: Table, graph: Graph, spec: EmbeddingSpec, ids_BT: Node, position_T: Node
) -> Node:
    """The sum over bands, where ids of other bands read some row that is multiplied by zero."""
    bands, wide, first = kind.bands(spec.vocab, spec.width), [], 0
    for band in bands:
        place = ids_BT if len(bands) == 1 else op.subtract(ids_BT, constant(np.int32(first)))
        # Out-of-range ids are clamped, since a gather beyond the table is undefined.
        inside = place if len(bands) == 1 else op.clamp(place, 0, band.ids - 1)
        x = table_rows(graph, band.rows, inside)
        x = x if band.widen is None else graph.plain(x, graph.load(band.widen))
        if len(bands) > 1:
            own = op.convert(op.equal(place, inside), "f32")
            x = op.multiply(x, op.unsqueeze(own, integers(2)))
        wide.append(x)
        first += band.ids
    return reduce(op.add, wide)
