"""Attention of few rows without keys and values: each row is mapped into the space of the tokens.

`q·(W z) = (Wᵀ q)·z` and `Σ a (W z) = W Σ a z`, so a row that looks at T tokens costs T dot products with the
tokens (or with their codes) for each head instead of two linear layers of every token. Exact in real numbers.
"""

import math

import numpy as np
from openvino import Node
from openvino import opset15 as op

from decoupled.model.parts.attention import SelfAttention
from decoupled.runtime.openvino.frame import NodeFrame
from decoupled.runtime.openvino.graph import Graph, LoadedLinear, constant, integers, rows
from decoupled.runtime.openvino.tokens import TokenPart, Tokens, Want

QUERY, PASSAGE = 20, 150
"""Usual lengths of query and passage in tokens, for choosing the cheaper form."""
ROUNDED_SPEED = 3.0
"""Speed of a product of bytes relative to one of floats."""


def pays(spec: SelfAttention, tokens: Tokens, want: Want, *, rounded: bool) -> bool:
    """Whether the absorbed form is cheaper for the wanted rows at usual lengths."""
    if want not in ("first", "query"):
        return False
    looking = 1 if want == "first" else QUERY
    inner, plain, folded = spec.heads * spec.head_width, 0.0, 0.0
    for part in tokens.parts:
        seen = QUERY if part is tokens.parts[0] and len(tokens.parts) == 2 else PASSAGE
        # A query that all pairs share is mapped once per batch, which costs each pair next to
        # nothing.
        seen = 1 if part.shared else seen
        width = _width(part, inner)
        # Plain: keys and values of every token. Folded: scores and sums in the tokens' own space,
        # per head.
        plain += 2 * seen * width * inner / (ROUNDED_SPEED if rounded else 1)
        folded += 2 * looking * spec.heads * seen * width
    # Mapping the queries into that space, and the sums back out of it.
    return folded + 2 * looking * inner * inner < plain


def _width(part: TokenPart, inner: int) -> int:
    return part.up.inputs if part.up is not None else inner


def absorbed(
    graph: Graph, frame: NodeFrame, tokens: Tokens, spec: SelfAttention, name: str, want: Want
) -> Node:
    """`[B,R,H·K]` of the wanted rows: what `attend` gives."""
    query, key, value = (graph.load(f"{name}.{part}") for part in ("query", "key", "value"))
    scale = np.float32(1 / math.sqrt(spec.head_width))
    taken = tokens.take(want)
    (q_BRI,) = taken.linear(graph, (query,))
    heads = spec.heads
    # [B,R,H·K] -> [H,B,R,K]
    q_HBRK = op.transpose(op.reshape(q_BRI, integers(0, 0, heads, -1), True), integers(2, 0, 1, 3))
    seen = [_codes(part) for part in tokens.parts]
    keys = [key.after(up) if up else key for _, up in seen]
    values = [value.after(up) if up else value for _, up in seen]
    scores = []
    for (z_BTC, _), linear, part in zip(seen, keys, tokens.parts, strict=True):
        score = _scores(q_HBRK, z_BTC, linear, heads, scale, _same(keys))
        shared = part.shared and all(p.shared for p in taken.parts)
        scores.append(tokens.spread(score) if shared else score)
    # One softmax over the tokens of both parts.
    score_BNT = scores[0] if len(scores) == 1 else op.concat(scores, 2)
    # [B,1,1,T] -> [B,1,T]: heads and rows share an axis here.
    mask_B1T = op.squeeze(frame.mask(None), integers(1))
    weight_BNT = op.softmax(op.add(score_BNT, mask_B1T), 2)
    return _values(weight_BNT, seen, values, heads, tokens)


def _codes(part: TokenPart) -> tuple[Node, LoadedLinear | None]:
    return (part.value, None) if part.narrow is None else (part.narrow, part.up)


def _same(layers: list[LoadedLinear]) -> bool:
    """Whether all parts have the same bias, which is then the same for every token."""
    return len({None if m.bias is None else m.bias.tobytes() for m in layers}) == 1


def _scores(
    q_HBRK: Node, z_BTC: Node, key: LoadedLinear, heads: int, scale: np.float32, same: bool
) -> Node:
    """`[B,H·R,T]`. A bias that is the same for every token does not change the softmax."""
    # The scale goes into the constant, so that it costs nothing at run time.
    weight_HKC = key.matrix().reshape(heads, -1, key.inputs) * scale
    u_HBRC = op.matmul(q_HBRK, constant(weight_HKC[:, None]), False, False)
    score = op.matmul(_by_row(u_HBRC, weight_HKC.shape[2]), z_BTC, False, True)
    if same or key.bias is None:
        return score
    bias_HK1 = key.bias.reshape(heads, 1, -1, 1) * scale
    return op.add(score, _by_row(op.matmul(q_HBRK, constant(bias_HK1), False, False), 1))


def _by_row(x_HBRC: Node, width: int) -> Node:
    """`[H,B,R,C]` to `[B,H·R,C]`."""
    return op.reshape(op.transpose(x_HBRC, integers(1, 0, 2, 3)), integers(0, -1, width), True)


def _values(
    weight_BNT: Node,
    seen: list[tuple[Node, LoadedLinear | None]],
    values: list[LoadedLinear],
    heads: int,
    tokens: Tokens,
) -> Node:
    """`[B,R,H·K]` values gathered by the softmax weights."""
    total: Node | None = None
    same = _same(values)
    for number, ((z_BTC, _), linear) in enumerate(zip(seen, values, strict=True)):
        a_BNT = weight_BNT
        if len(seen) == 2:
            # The softmax ran over both parts; each takes the columns of its own tokens.
            start, stop = (0, tokens.query) if number == 0 else (tokens.query, None)
            a_BNT = rows(weight_BNT, start, stop, axis=2)
        width = linear.inputs
        mixed = op.reshape(
            op.matmul(a_BNT, z_BTC, False, False), integers(0, heads, -1, width), True
        )
        weight_HCK = linear.matrix().reshape(heads, -1, width).transpose(0, 2, 1)
        mixed_HBRC = op.transpose(mixed, integers(1, 0, 2, 3))
        y_HBRK = op.matmul(mixed_HBRC, constant(weight_HCK[:, None]), False, False)
        if linear.bias is not None:
            bias = constant(linear.bias.reshape(heads, 1, 1, -1))
            if not same:
                # With different biases each counts by the weight that its part got; the weights sum
                # to 1 in all.
                share = op.reduce_sum(a_BNT, integers(2), True)
                share = op.reshape(share, integers(0, heads, -1, 1), True)
                bias = op.multiply(op.transpose(share, integers(1, 0, 2, 3)), bias)
            # A common bias counts once, since the weights of both parts together sum to 1.
            if not same or number == 0:
                y_HBRK = op.add(y_HBRK, bias)
        total = y_HBRK if total is None else op.add(total, y_HBRK)
    y_BRHK = op.transpose(total, integers(1, 2, 0, 3))
    return op.reshape(y_BRHK, integers(0, 0, -1), True)
