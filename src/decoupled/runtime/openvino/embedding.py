"""Token ids to vectors as nodes, and the tables at the start of a cross component."""

import numpy as np
from openvino import Node
from openvino import opset15 as op

from decoupled.model.parts.norm import NormSpec
from decoupled.model.spec import ModelSpec
from decoupled.runtime.openvino.graph import Graph, constant, integers, rows
from decoupled.runtime.openvino.table import table_rows, token_rows
from decoupled.runtime.openvino.tokens import TokenPart, Tokens


def embedded(graph: Graph, spec: ModelSpec, ids_BT: Node, position_T: Node, kind: Node) -> Node:
    """`[B,T,D]` embeddings: tokens, positions and types, summed, normalised and widened."""
    table = spec.encoder.embedding
    x = token_rows(table.tokens, graph, table, ids_BT, position_T)
    if table.positions:
        place = op.add(position_T, constant(np.int64(table.position_start)))
        x = op.add(x, op.unsqueeze(table_rows(graph, "embedding.positions", place), integers(0)))
    if table.types:
        x = op.add(x, table_rows(graph, "embedding.types", kind))
    if table.project == "before_norm":
        x = graph.plain(x, graph.load("embedding.project"))
    x = graph.norm(x, "embedding.norm", table.norm) if table.norm else x
    if table.project == "after_norm":
        x = graph.plain(x, graph.load("embedding.project"))
    return x


def cross_embedded(graph: Graph, spec: ModelSpec, tokens: Tokens, position_T: Node) -> Tokens:
    """The tokens with the position and segment tables of the cross component added."""
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
        # Rows that were changed are no longer linear in the codes, so the new part has none.
        parts.append(TokenPart(value=x, tap=f"embedded.{side}", shared=part.shared))
    return Tokens(parts=tuple(parts), query=tokens.query, batch=tokens.batch)
