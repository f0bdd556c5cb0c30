"""Token ids to vectors as nodes, and the tables at the start of a cross component."""

from __future__ import annotations

from functools import reduce

import numpy as np
from openvino import Node
from openvino import opset15 as op
from typing_extensions import assert_never

from decoupled.model.parts.norm import NormSpec
from decoupled.model.parts.table import Banded, Factorised, TableSpec
from decoupled.model.spec import ModelSpec
from decoupled.runtime.openvino.graph import Graph, constant, integers, rows
from decoupled.runtime.openvino.tokens import Part, Tokens


def embedded(graph: Graph, spec: ModelSpec, ids_BT: Node, position_T: Node, kind: Node) -> Node:
    """`[B,T,D]` of tokens, positions and types: summed, normalised, widened."""
    table = spec.encoder.embedding
    x = _token_rows(graph, table.table, ids_BT)
    if table.positions:
        place = op.add(position_T, constant(np.int64(table.position_start)))
        x = op.add(x, op.unsqueeze(_table(graph, "embedding.positions", place), integers(0)))
    if table.types:
        x = op.add(x, _table(graph, "embedding.types", kind))
    if table.project == "before_norm":
        x = graph.plain(x, graph.map("embedding.project"))
    x = graph.norm(x, "embedding.norm", table.norm)
    if table.project == "after_norm":
        x = graph.plain(x, graph.map("embedding.project"))
    return x


def _table(graph: Graph, name: str, index: Node) -> Node:
    """Rows of a table, which may be kept as codes with a scale each."""
    axis = constant(np.int64(0))
    if f"{name}.codes" not in graph.tensors:
        return op.gather(constant(graph.array(f"{name}.weight")), index, axis)
    codes = op.gather(constant(graph.tensors[f"{name}.codes"]), index, axis)
    scale = op.gather(constant(graph.array(f"{name}.scale_V1")), index, axis)
    return op.multiply(op.convert(codes, "f32"), scale)


def _token_rows(graph: Graph, table: TableSpec | None, ids_BT: Node) -> Node:
    """What the table of tokens has for each id, in any of its forms."""
    name = "embedding.tokens"
    match table:
        case None:
            return _table(graph, name, ids_BT)
        case Factorised():
            return graph.plain(_table(graph, f"{name}.table", ids_BT), graph.map(f"{name}.widen"))
        case Banded():
            return _banded(graph, table, name, ids_BT)
        case _:
            assert_never(table)


def _banded(graph: Graph, table: Banded, name: str, ids_BT: Node) -> Node:
    """The sum over bands: ids of other bands read some row, which counts for nothing."""
    found, first = [], 0
    for band, rows_of in enumerate(table.sizes):
        place = op.subtract(ids_BT, constant(np.int32(first)))
        inside = op.clamp(place, 0, rows_of - 1)
        wide = graph.plain(
            _table(graph, f"{name}.tables.{band}", inside), graph.map(f"{name}.widen.{band}")
        )
        own = op.convert(op.equal(place, inside), "f32")
        found.append(op.multiply(wide, op.unsqueeze(own, integers(2))))
        first += rows_of
    return reduce(op.add, found)


def cross_embedded(graph: Graph, spec: ModelSpec, tokens: Tokens, position_T: Node) -> Tokens:
    """New position and segment tables at the start of the cross component."""
    start = constant(np.int64(spec.encoder.embedding.position_start))
    place_TD = _table(graph, "cross_embedding.positions", op.add(position_T, start))
    segments = graph.array("cross_embedding.segments.weight")
    spans = ((0, tokens.query), (tokens.query, None))
    parts = []
    for part, span, segment in zip(tokens.parts, spans, segments, strict=True):
        added = op.add(rows(place_TD, *span, axis=0), constant(segment))
        x = op.add(part.value, op.unsqueeze(added, integers(0)))
        if spec.cross_embed == "add_ln":
            x = graph.norm(x, "cross_embedding.norm", NormSpec())
        side = "query" if part.shared else "passage"
        parts.append(Part(value=x, tap=f"embedded.{side}", shared=part.shared))
    return Tokens(parts=tuple(parts), query=tokens.query, batch=tokens.batch)
