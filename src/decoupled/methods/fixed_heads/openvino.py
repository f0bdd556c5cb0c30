"""Fixed attention patterns as nodes, with the weights that `decoupled.methods.fixed_heads.module` defines.

Real tokens stand to the left of the padding in every batch here, so a token's place is its number.
"""

import numpy as np
from openvino import Node
from openvino import opset15 as op

from decoupled.methods.fixed_heads.part import FixedPatterns, Pattern
from decoupled.runtime.openvino.attention.base import (
    NodeContext,
    attend,
    merge_heads,
    projected,
    split_heads,
)
from decoupled.runtime.openvino.attention.dot import looked
from decoupled.runtime.openvino.frame import NodeFrame
from decoupled.runtime.openvino.graph import constant, integers, rows
from decoupled.runtime.openvino.tokens import Tokens, take_rows

NEAR = ("current", "previous", "next", "last")


@attend.register
def _(kind: FixedPatterns, tokens: Tokens, context: NodeContext) -> Node:
    """The first heads look where their patterns say, the others by scores of their own."""
    fixed, parts = len(kind.patterns), []
    if kind.learned:
        q, k, v = projected(tokens, context)
    else:
        (v,) = tokens.linear(context.graph, (context.graph.load(f"{context.name}.value"),))
    v_BHTK = split_heads(v, kind.heads)
    if fixed:
        weight = take_rows(weights(kind, context.frame), context.want, tokens.query, 2)
        parts.append(op.matmul(weight, rows(v_BHTK, 0, fixed), False, False))
    if kind.learned:
        q, k = (split_heads(x, kind.learned) for x in (q, k))
        parts.append(looked(kind, q, k, rows(v_BHTK, fixed), tokens, context))
    return context.out(merge_heads(parts[0] if len(parts) == 1 else op.concat(parts, 1)))


def weights(kind: FixedPatterns, frame: NodeFrame) -> Node:
    """`[B,F,T,T]`: what each token of each fixed head gives to each other, once for layers of one kind."""
    key = ("patterns", kind.patterns, kind.empty)
    return frame.cached(key, lambda: _weights(kind, frame.real))


def _weights(spec: FixedPatterns, real_BT: Node) -> Node:
    real = op.convert(op.unsqueeze(real_BT, integers(1)), "f32")
    n = op.reduce_sum(real, integers(2), True)
    # Places among real tokens, for padding stands between query and passage too; that of padding is beyond
    # all. In floats: a minimum of integers came out wrong where both sides were stretched (OpenVINO 2026.4).
    before = op.subtract(op.cum_sum(real, constant(np.int64(2))), number(1))
    j = op.add(before, op.multiply(op.subtract(number(1), real), n))
    i = op.transpose(j, integers(0, 2, 1))
    drawn: dict[Pattern, Node] = {}
    for pattern in spec.patterns:
        if pattern not in drawn:
            draw = _near if pattern in NEAR else _context
            weights = op.multiply(draw(pattern, i, j, n, spec), real)
            drawn[pattern] = op.unsqueeze(weights, integers(1))
    return op.concat([drawn[pattern] for pattern in spec.patterns], 1)


def _near(pattern: Pattern, i: Node, j: Node, n: Node, spec: FixedPatterns) -> Node:
    """One token beside this one, or the last."""
    last = op.add(op.multiply(i, number(0)), op.subtract(n, number(1)))
    at = {
        "current": i,
        "previous": op.subtract(i, number(1)),
        "next": op.add(i, number(1)),
        "last": last,
    }[pattern]
    if spec.empty == "clamp":
        at = op.minimum(op.maximum(at, number(0)), last)
    return op.convert(op.equal(j, at), "f32")


def _context(pattern: Pattern, i: Node, j: Node, n: Node, spec: FixedPatterns) -> Node:
    """Everything before, behind or around, by the cube of its place over n, so that cubes stay small."""
    rising = pattern in ("left", "end")
    inside = op.less(j, n)
    if pattern == "left":
        inside = op.logical_and(inside, op.less_equal(j, op.subtract(i, number(2))))
    elif pattern == "right":
        inside = op.logical_and(inside, op.greater_equal(j, op.add(i, number(2))))
    else:
        inside = op.logical_and(inside, op.greater_equal(i, number(0)))
    share = op.divide(op.add(j, number(1)) if rising else op.subtract(n, j), n)
    cube = op.multiply(op.multiply(share, share), share)
    weight = op.select(inside, cube, number(0))
    total = op.reduce_sum(weight, integers(2), True)
    positive = op.greater(total, number(0))
    if spec.empty == "clamp":
        edge = number(0) if rising else op.subtract(n, number(1))
        weight = op.select(positive, weight, op.convert(op.equal(j, edge), "f32"))
    return op.divide(weight, op.select(positive, total, number(1)))


def number(value: float) -> Node:
    """A constant that places are compared with."""
    return constant(np.float32(value))
