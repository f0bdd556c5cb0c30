"""Scaled dot-product attention as nodes: fused, or absorbed where few rows look at many tokens."""

from typing import Any

from openvino import Node
from openvino import opset15 as op

from decoupled.model.parts.attention import SelfAttention
from decoupled.runtime.openvino.attention.absorbed import absorbed, pays
from decoupled.runtime.openvino.attention.base import (
    NodeContext,
    attend,
    merge_heads,
    projected,
    split_heads,
)
from decoupled.runtime.openvino.frame import rotate
from decoupled.runtime.openvino.tokens import Tokens, take_rows


@attend.register
def _(kind: SelfAttention, tokens: Tokens, context: NodeContext) -> Node:
    graph, frame, want = context.graph, context.frame, context.want
    # Rotation and windows depend on the pair of positions, which the absorbed form does not see.
    plain = kind.rotary is None and kind.window is None and graph.observed is None
    if plain and pays(kind, tokens, want, rounded=bool(graph.ranges)):
        return context.out(absorbed(graph, frame, tokens, kind, context.name, want))
    q, k, v = (split_heads(x, kind.heads) for x in projected(tokens, context))
    return context.out(merge_heads(looked(kind, q, k, v, tokens, context)))


def looked(
    kind: SelfAttention | Any, q: Node, k: Node, v: Node, tokens: Tokens, context: NodeContext
) -> Node:
    """`[B,H,R,K]` values by scaled dot products, rotary and windowed when the kind says so."""
    frame, want = context.frame, context.want
    if kind.rotary is not None:
        cos, sin = frame.angles(kind.rotary, kind.head_width)
        taken = [take_rows(x, want, tokens.query, 2) for x in (cos, sin)]
        q = rotate(q, taken[0], taken[1], kind.head_width)
        k = rotate(k, cos, sin, kind.head_width)
    mask = frame.mask(kind.window)
    # Without a window the mask has one row for all; a windowed one has a row per token.
    if kind.window is not None:
        mask = take_rows(mask, want, tokens.query, 2)
    return op.scaled_dot_product_attention(q, k, v, mask)
