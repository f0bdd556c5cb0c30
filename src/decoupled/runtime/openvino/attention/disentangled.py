"""DeBERTa's attention as nodes: content-position and position-content scores enter as an additive bias."""

import numpy as np
from openvino import Node
from openvino import opset15 as op

from decoupled.model.parts.attention import Disentangled
from decoupled.runtime.openvino.attention.base import (
    NodeContext,
    attend,
    merge_heads,
    projected,
    split_heads,
)
from decoupled.runtime.openvino.graph import constant, integers, size
from decoupled.runtime.openvino.tokens import Tokens, take_rows


@attend.register
def _(kind: Disentangled, tokens: Tokens, context: NodeContext) -> Node:
    q, k, v = (split_heads(x, kind.heads) for x in projected(tokens, context))
    scale = np.float32(kind.scale)
    bias = context.frame.mask(None)
    if context.relative is not None and kind.terms:
        scores = _position_scores(kind, q, k, tokens, context)
        bias = op.add(op.multiply(scores, constant(scale)), bias)
    seen = op.scaled_dot_product_attention(q, k, v, bias, constant(scale))
    return context.out(merge_heads(seen))


def _position_scores(
    kind: Disentangled, q_BHRK: Node, k_BHTK: Node, tokens: Tokens, context: NodeContext
) -> Node:
    graph = context.graph
    assert context.relative is not None
    # The table may have more rows than this kind uses.
    table = op.slice(
        context.relative, integers(0), integers(2 * kind.buckets), integers(1), integers(0)
    )
    table = op.unsqueeze(table, integers(0))
    bucket_1RT = take_rows(
        context.frame.buckets(kind.buckets, kind.max_distance), context.want, tokens.query, 1
    )
    shape = op.concat([size(q_BHRK, 0), integers(kind.heads, 1, 1)], 0)
    # The buckets are the same for all pairs and heads of a batch.
    index = op.broadcast(bucket_1RT, shape, broadcast_spec="BIDIRECTIONAL")
    parts = []
    if "c2p" in kind.terms:
        name = f"{context.name}.{'key' if kind.shared else 'relative_key'}"
        keys = split_heads(graph.plain(table, graph.load(name)), kind.heads)
        parts.append(op.gather_elements(op.matmul(q_BHRK, keys, False, True), index, 3))
    if "p2c" in kind.terms:
        name = f"{context.name}.{'query' if kind.shared else 'relative_query'}"
        queries = split_heads(graph.plain(table, graph.load(name)), kind.heads)
        parts.append(op.gather_elements(op.matmul(queries, k_BHTK, False, True), index, 2))
    return parts[0] if len(parts) == 1 else op.add(parts[0], parts[1])
