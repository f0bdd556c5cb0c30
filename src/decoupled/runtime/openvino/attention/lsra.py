"""Long-short range attention as nodes: ordinary attention on half of the columns, a band on the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from openvino import Node
from openvino import opset15 as op

from decoupled.model.parts.attention.dot import SelfAttention
from decoupled.model.parts.attention.lsra import LongShort
from decoupled.runtime.openvino.attention.base import (
    Context,
    attend,
    merge_heads,
    split_heads,
)
from decoupled.runtime.openvino.frame import Frame
from decoupled.runtime.openvino.graph import constant, integers, size
from decoupled.runtime.openvino.tokens import Part, Tokens, take_rows


@attend.register
def _(kind: LongShort, tokens: Tokens, context: Context) -> Node:
    graph, name = context.graph, context.name
    half = graph.load(f"{name}.query").inputs
    far, near = (_columns(tokens, half, n, context.tap) for n in (0, 1))
    heads = SelfAttention(heads=kind.heads, head_width=kind.head_width)
    seen_BRC = attend(heads, far, context)
    (u_BTC,) = near.linear(graph, (graph.load(f"{name}.near"),))
    if kind.gated:
        value, gate = _halves(u_BTC, half)
        u_BTC = op.multiply(value, op.sigmoid(gate))
    weight_BHRT = _band(kind, u_BTC, tokens, context)
    y_BRC = merge_heads(op.matmul(weight_BHRT, split_heads(u_BTC, kind.kernels), False, False))
    y_BRC = graph.apply(y_BRC, f"{name}.near_out", f"{context.tap}.near")
    return op.concat([seen_BRC, y_BRC], 2)


def _columns(tokens: Tokens, half: int, number: int, tap: str) -> Tokens:
    """One half of the columns of every part."""
    parts = tuple(
        Part(
            value=_halves(part.value, half)[number],
            tap=f"{tap}.half.{number}.{place}",
            shared=part.shared,
        )
        for place, part in enumerate(tokens.parts)
    )
    return replace(tokens, parts=parts)


def _halves(x: Node, half: int) -> list[Node]:
    return op.variadic_split(x, constant(np.int64(2)), integers(half, half)).outputs()


def _band(kind: LongShort, u_BTC: Node, tokens: Tokens, context: Context) -> Node:
    """`[B,H,R,T]`: what each token gives to each wanted row."""
    graph, want = context.graph, context.want
    place_BTT, seen_BTT = _places(context.frame, kind.kernel)
    place, seen = (
        op.unsqueeze(take_rows(x, want, tokens.query, 1), integers(1))
        for x in (place_BTT, seen_BTT)
    )
    if kind.dynamic:
        rows = take_rows(u_BTC, want, tokens.query, 1)
        logits = graph.apply(rows, f"{context.name}.weigh", f"{context.tap}.weigh")
        weight_BHRK = op.softmax(split_heads(logits, kind.kernels), 3)
    else:
        logits = graph.array(f"{context.name}.kernel")
        powers = np.exp(logits - logits.max(1, keepdims=True))
        fixed = (powers / powers.sum(1, keepdims=True))[None, :, None]
        shape = op.concat([size(place, 0), integers(1), size(place, 2), integers(1)], 0)
        weight_BHRK = op.broadcast(constant(fixed), shape, broadcast_spec="BIDIRECTIONAL")
    shape = op.concat([integers(1, kind.kernels, 1, 1)], 0)
    index = op.broadcast(place, shape, broadcast_spec="BIDIRECTIONAL")
    return op.multiply(op.gather_elements(weight_BHRK, index, 3), seen)


def _places(frame: Frame, kernel: int) -> tuple[Node, Node]:
    """`[B,T,T]` each: the place of each token in the kernel of each other, and whether that sees it."""
    place = frame.made(("places", kernel), lambda: _place(frame, kernel))
    inside = op.clamp(place, 0, kernel - 1)
    real = op.convert(op.unsqueeze(frame.real, integers(1)), "f32")
    seen = op.multiply(op.convert(op.equal(place, inside), "f32"), real)
    return op.convert(inside, "i32"), seen


def _place(frame: Frame, kernel: int) -> Node:
    # Places among real tokens, for padding stands between query and passage too.
    order = op.cum_sum(op.convert(frame.real, "f32"), constant(np.int64(1)))
    apart = op.subtract(op.unsqueeze(order, integers(1)), op.unsqueeze(order, integers(2)))
    return op.add(apart, constant(np.float32(kernel // 2)))
