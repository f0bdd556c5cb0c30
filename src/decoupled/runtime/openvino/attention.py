"""Attention kinds as nodes, on the fused operation, or absorbed where few rows look at many tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from openvino import Node
from openvino import opset15 as op
from typing_extensions import assert_never

from decoupled.model.parts.attention import (
    AttentionSpec,
    Disentangled,
    FixedPatterns,
    SelfAttention,
)
from decoupled.runtime.openvino.absorbed import absorbed, pays
from decoupled.runtime.openvino.frame import Frame, rotate
from decoupled.runtime.openvino.graph import Graph, constant, integers, rows, size
from decoupled.runtime.openvino.tokens import Tokens, Want, take_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """What an attention is part of."""

    graph: Graph
    frame: Frame
    name: str
    want: Want
    relative: Node | None = None


def attend(spec: AttentionSpec, tokens: Tokens, setting: Setting) -> Node:
    """The one place where an attention kind is chosen: `[B,R,H·K]`, before the output map."""
    match spec:
        case SelfAttention():
            return _dot_product(spec, tokens, setting)
        case Disentangled():
            return _disentangled(spec, tokens, setting)
        case FixedPatterns():
            return _patterned(spec, tokens, setting)
        case _:
            assert_never(spec)


def _dot_product(spec: SelfAttention, tokens: Tokens, at: Setting) -> Node:
    graph, frame, want = at.graph, at.frame, at.want
    plain = spec.rotary is None and spec.window is None and graph.observed is None
    if plain and pays(spec, tokens, want, rounded=bool(graph.ranges)):
        return absorbed(graph, frame, tokens, spec, at.name, want)
    q, k, v = (split_heads(x, spec.heads) for x in _projected(tokens, at))
    return merge_heads(_looked(spec, q, k, v, tokens, at))


def _looked(
    spec: SelfAttention | FixedPatterns, q: Node, k: Node, v: Node, tokens: Tokens, at: Setting
) -> Node:
    """`[B,H,R,K]` values by scaled dot products, rotary and windowed when the spec says so."""
    frame, want = at.frame, at.want
    if spec.rotary is not None:
        cos, sin = frame.angles(spec.rotary, spec.head_width)
        taken = [take_rows(x, want, tokens.query, 2) for x in (cos, sin)]
        q = rotate(q, taken[0], taken[1], spec.head_width)
        k = rotate(k, cos, sin, spec.head_width)
    mask = frame.mask(spec.window)
    if spec.window is not None:
        mask = take_rows(mask, want, tokens.query, 2)
    return op.scaled_dot_product_attention(q, k, v, mask)


def _patterned(spec: FixedPatterns, tokens: Tokens, at: Setting) -> Node:
    """The first heads look where their patterns say, the others by scores of their own."""
    fixed, parts = len(spec.patterns), []
    if spec.learned:
        q, k, v = _projected(tokens, at)
    else:
        (v,) = tokens.linear(at.graph, (at.graph.map(f"{at.name}.value"),))
    v_BHTK = split_heads(v, spec.heads)
    if fixed:
        weight = take_rows(at.frame.patterns(spec), at.want, tokens.query, 2)
        parts.append(op.matmul(weight, rows(v_BHTK, 0, fixed), False, False))
    if spec.learned:
        q, k = (split_heads(x, spec.learned) for x in (q, k))
        parts.append(_looked(spec, q, k, rows(v_BHTK, fixed), tokens, at))
    return merge_heads(parts[0] if len(parts) == 1 else op.concat(parts, 1))


def _projected(tokens: Tokens, at: Setting) -> tuple[Node, Node, Node]:
    """Queries of the wanted rows, keys and values of all of them: `[B,T,H·K]`."""
    query, key, value = (at.graph.map(f"{at.name}.{part}") for part in ("query", "key", "value"))
    if at.want == "all":
        q, k, v = tokens.linear(at.graph, (query, key, value))
        return q, k, v
    k, v = tokens.linear(at.graph, (key, value))
    taken = tokens.take(at.want)
    (q,) = taken.linear(at.graph, (query,))
    return (taken.spread(q) if all(part.shared for part in taken.parts) else q), k, v


def _disentangled(spec: Disentangled, tokens: Tokens, at: Setting) -> Node:
    """DeBERTa: content-position and position-content scores enter as an additive bias."""
    q, k, v = (split_heads(x, spec.heads) for x in _projected(tokens, at))
    scale = np.float32(1 / math.sqrt(spec.head_width * (1 + len(spec.terms))))
    bias = at.frame.mask(None)
    if at.relative is not None and spec.terms:
        scores = _position_scores(spec, q, k, tokens, at)
        bias = op.add(op.multiply(scores, constant(scale)), bias)
    return merge_heads(op.scaled_dot_product_attention(q, k, v, bias, constant(scale)))


def _position_scores(
    spec: Disentangled, q_BHRK: Node, k_BHTK: Node, tokens: Tokens, at: Setting
) -> Node:
    graph = at.graph
    assert at.relative is not None
    table = op.slice(at.relative, integers(0), integers(2 * spec.buckets), integers(1), integers(0))
    table = op.unsqueeze(table, integers(0))
    bucket_RT = take_rows(
        at.frame.buckets(spec.buckets, spec.max_distance), at.want, tokens.query, 0
    )
    shape = op.concat([size(q_BHRK, 0), integers(spec.heads, 1, 1)], 0)
    index = op.broadcast(bucket_RT, shape, broadcast_spec="BIDIRECTIONAL")
    parts = []
    if "c2p" in spec.terms:
        name = f"{at.name}.{'key' if spec.shared else 'relative_key'}"
        keys = split_heads(graph.plain(table, graph.map(name)), spec.heads)
        parts.append(op.gather_elements(op.matmul(q_BHRK, keys, False, True), index, 3))
    if "p2c" in spec.terms:
        name = f"{at.name}.{'query' if spec.shared else 'relative_query'}"
        queries = split_heads(graph.plain(table, graph.map(name)), spec.heads)
        parts.append(op.gather_elements(op.matmul(queries, k_BHTK, False, True), index, 2))
    return parts[0] if len(parts) == 1 else op.add(parts[0], parts[1])


def split_heads(x_BTI: Node, heads: int) -> Node:
    """`[B,T,H·K]` to `[B,H,T,K]`."""
    return op.transpose(op.reshape(x_BTI, integers(0, 0, heads, -1), True), integers(0, 2, 1, 3))


def merge_heads(x_BHTK: Node) -> Node:
    """`[B,H,T,K]` to `[B,T,H·K]`."""
    return op.reshape(op.transpose(x_BHTK, integers(0, 2, 1, 3)), integers(0, 0, -1), True)
