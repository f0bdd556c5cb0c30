"""Token ids to vectors as nodes, by kind of token table, and the tables at the start of a cross component."""

from __future__ import annotations

from functools import reduce, singledispatch

import numpy as np
from openvino import Node
from openvino import opset15 as op

from decoupled.errors import InputError
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.norm import NormSpec
from decoupled.model.parts.table import Banded, Factorised, Table, WholeTable
from decoupled.model.spec import ModelSpec
from decoupled.runtime.openvino.graph import Graph, constant, integers, rows
from decoupled.runtime.openvino.tokens import Part, Tokens


def table_rows(graph: Graph, name: str, index: Node) -> Node:
    """Rows of a table, which may be kept as codes with a scale each."""
    axis = constant(np.int64(0))
    if f"{name}.codes" not in graph.tensors:
        return op.gather(constant(graph.array(f"{name}.weight")), index, axis)
    codes = op.gather(constant(graph.tensors[f"{name}.codes"]), index, axis)
    scale = op.gather(constant(graph.array(f"{name}.scale_V1")), index, axis)
    return op.multiply(op.convert(codes, "f32"), scale)


@singledispatch
def token_rows(kind: Table, graph: Graph, spec: EmbeddingSpec, ids_BT: Node) -> Node:
    """`[B,T,D]`: what a token table has for each id, as was registered here for its kind."""
    raise InputError(f"the openvino runtime lacks {kind.kind} token tables; choose torch")


@token_rows.register(WholeTable)
@token_rows.register(Factorised)
@token_rows.register(Banded)
def _(kind: Table, graph: Graph, spec: EmbeddingSpec, ids_BT: Node) -> Node:
    """The sum over bands: ids of other bands read some row, which counts for nothing."""
    bands, wide, first = kind.bands(spec.vocab, spec.width), [], 0
    for band in bands:
        place = ids_BT if len(bands) == 1 else op.subtract(ids_BT, constant(np.int32(first)))
        inside = place if len(bands) == 1 else op.clamp(place, 0, band.ids - 1)
        x = table_rows(graph, band.rows, inside)
        x = x if band.widen is None else graph.plain(x, graph.load(band.widen))
        if len(bands) > 1:
            own = op.convert(op.equal(place, inside), "f32")
            x = op.multiply(x, op.unsqueeze(own, integers(2)))
        wide.append(x)
        first += band.ids
    return reduce(op.add, wide)


def embedded(graph: Graph, spec: ModelSpec, ids_BT: Node, position_T: Node, kind: Node) -> Node:
    """`[B,T,D]` of tokens, positions and types: summed, normalised, widened."""
    table = spec.encoder.embedding
    x = token_rows(table.tokens, graph, table, ids_BT)
    if table.positions:
        place = op.add(position_T, constant(np.int64(table.position_start)))
        x = op.add(x, op.unsqueeze(table_rows(graph, "embedding.positions", place), integers(0)))
    if table.types:
        x = op.add(x, table_rows(graph, "embedding.types", kind))
    if table.project == "before_norm":
        x = graph.plain(x, graph.load("embedding.project"))
    x = graph.norm(x, "embedding.norm", table.norm)
    if table.project == "after_norm":
        x = graph.plain(x, graph.load("embedding.project"))
    return x


def cross_embedded(graph: Graph, spec: ModelSpec, tokens: Tokens, position_T: Node) -> Tokens:
    """New position and segment tables at the start of the cross component."""
    start = constant(np.int64(spec.encoder.embedding.position_start))
    place_TD = table_rows(graph, "cross_embedding.positions", op.add(position_T, start))
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
