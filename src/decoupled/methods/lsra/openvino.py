"""Long-short range attention as nodes: ordinary attention on half of the columns, a band on the others.

N: real tokens of the query and all of the passage, without the padding that may stand between; W: tokens that
a kernel sees.
"""

from dataclasses import replace

import numpy as np
from openvino import Node
from openvino import opset15 as op

from decoupled.methods.lsra.part import LongShort
from decoupled.model.parts.attention.dot import SelfAttention
from decoupled.runtime.openvino.attention.base import NodeContext, attend, merge_heads, split_heads
from decoupled.runtime.openvino.graph import constant, integers, rows, size
from decoupled.runtime.openvino.tokens import TokenPart, Tokens


@attend.register
def _(kind: LongShort, tokens: Tokens, context: NodeContext) -> Node:
    graph, name = context.graph, context.name
    half = graph.load(f"{name}.query").inputs
    far, near = (_columns(tokens, half, n, context.tap) for n in (0, 1))
    heads = SelfAttention(heads=kind.heads, head_width=kind.head_width)
    seen_BRC = attend(heads, far, context)
    (u_BTC,) = near.linear(graph, (graph.load(f"{name}.near"),))
    if kind.gated:
        value, gate = _halves(u_BTC, half)
        u_BTC = op.multiply(value, op.sigmoid(gate))
    y_BRC = _convolved(kind, u_BTC, tokens, context)
    y_BRC = graph.apply(y_BRC, f"{name}.near_out", f"{context.tap}.near")
    return op.concat([seen_BRC, y_BRC], 2)


def _columns(tokens: Tokens, half: int, number: int, tap: str) -> Tokens:
    """One half of the columns of every part."""
    parts = tuple(
        TokenPart(
            value=_halves(part.value, half)[number],
            tap=f"{tap}.half.{number}.{place}",
            shared=part.shared,
        )
        for place, part in enumerate(tokens.parts)
    )
    return replace(tokens, parts=parts)


def _halves(x: Node, half: int) -> list[Node]:
    return op.variadic_split(x, constant(np.int64(2)), integers(half, half)).outputs()


def _convolved(kind: LongShort, u_BTC: Node, tokens: Tokens, context: NodeContext) -> Node:
    """`[B,R,C]`: the wanted rows, each with its neighbours."""
    query, want, real = tokens.query, context.want, op.convert(context.frame.real, "f32")
    # All pairs have the same query.
    first = rows(rows(real, 0, 1, 0), 0, query)
    query_rows = op.convert(op.reduce_sum(first, integers(1), False), "i64")
    u_BNC, real_BN = (op.concat([rows(x, 0, query_rows), rows(x, query)], 1) for x in (u_BTC, real))
    u_BNC = op.multiply(u_BNC, op.unsqueeze(real_BN, integers(2)))
    weight_BHRN = _band(kind, u_BNC, context)
    y_BNC = merge_heads(op.matmul(weight_BHRN, split_heads(u_BNC, kind.kernels), False, False))
    if want == "first":
        return y_BNC
    parts = [rows(y_BNC, 0, 1)] if want == "span" else [rows(y_BNC, 0, query_rows)]
    if want != "span":
        parts.append(rows(u_BTC, query_rows, query))  # padding: something of the right shape
    return op.concat([*parts, *([] if want == "query" else [rows(y_BNC, query_rows)])], 1)


def _band(kind: LongShort, u_BNC: Node, context: NodeContext) -> Node:
    """`[B|1,H,N,N]`, or its first row alone: what each token gives to each other."""
    graph, count, only = context.graph, size(u_BNC, 1), context.want == "first"
    looking = rows(u_BNC, 0, 1) if only else u_BNC
    if kind.dynamic:
        logits = graph.apply(looking, f"{context.name}.weigh", f"{context.tap}.weigh")
        weight_BHRW = op.softmax(split_heads(logits, kind.kernels), 3)
    else:
        logits_HW = graph.array(f"{context.name}.kernel")
        powers = np.exp(logits_HW - logits_HW.max(1, keepdims=True))
        fixed = constant((powers / powers.sum(1, keepdims=True))[None, :, None])
        shape = op.concat([integers(1, 1), size(looking, 1), integers(1)], 0)
        weight_BHRW = op.broadcast(fixed, shape, broadcast_spec="BIDIRECTIONAL")
    nothing = integers(0, 0, 0, 0)
    right = op.concat([integers(0, 0, 0), count], 0)
    wide = op.pad(weight_BHRW, nothing, right, "constant", constant(np.float32(0)))
    middle = integers(kind.kernel // 2)
    if not only:
        # Read as rows that are one shorter, each row moves one further to the right than the row before.
        flat = op.reshape(wide, integers(0, 0, -1), True)
        flat = rows(flat, 0, op.subtract(size(flat, 2), count), 2)
        wide = op.reshape(flat, op.concat([integers(0, 0), count, integers(-1)], 0), True)
    return rows(wide, middle, op.add(middle, count), 3)
