"""The attention of decoders as nodes: heads that share keys and values, causal, after a text that is kept."""

from openvino import Node
from openvino import opset15 as op

from decoupled.model.parts.attention import Grouped
from decoupled.runtime.openvino.attention.base import (
    NodeContext,
    attend,
    merge_heads,
    projected,
    split_heads,
)
from decoupled.runtime.openvino.frame import rotate
from decoupled.runtime.openvino.graph import integers
from decoupled.runtime.openvino.tokens import Tokens, take_rows


@attend.register
def _(kind: Grouped, tokens: Tokens, context: NodeContext) -> Node:
    frame, want, query = context.frame, context.want, tokens.query
    sizes = kind.heads, kind.groups, kind.groups
    q, k, v = (split_heads(*pair) for pair in zip(projected(tokens, context), sizes, strict=True))
    if kind.norm is not None:
        q = context.graph.norm(q, f"{context.name}.query_norm", kind.norm)
        k = context.graph.norm(k, f"{context.name}.key_norm", kind.norm)
    cos, sin = frame.angles(kind.rotary, kind.head_width, kind.scaling)
    taken = [take_rows(x, want, query, 2) for x in (cos, sin)]
    q = rotate(q, taken[0], taken[1], kind.head_width)
    k = rotate(k, cos, sin, kind.head_width)
    if context.kept is not None:
        context.kept.extend((merge_heads(k), merge_heads(v)))
    if context.past is not None:
        k, v = (op.concat(pair, 2) for pair in zip((k, v), context.past, strict=True))
    mask = frame.mask(None, causal=kind.causal)
    mask = take_rows(mask, want, query, 2) if kind.causal else mask
    # The heads of a group become rows of one head: [B,H,R,K] -> [B,G,H/G·R,K].
    rows, each = integers(0, kind.groups, -1, kind.head_width), kind.heads // kind.groups
    mask = op.tile(mask, integers(1, 1, each, 1)) if kind.causal else mask
    seen = op.scaled_dot_product_attention(op.reshape(q, rows, True), k, v, mask)
    back = integers(0, kind.heads, -1, kind.head_width)
    return context.out(merge_heads(op.reshape(seen, back, True)))
