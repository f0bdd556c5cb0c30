"""The two components of a model as OpenVINO models with dynamic shapes, made from its spec and weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import Node
from openvino import opset15 as op

from decoupled.model.codec import CodeLayout
from decoupled.model.parts.exits import EXITS
from decoupled.model.parts.head import HeadKind, HeadSpec
from decoupled.model.spec import VECTOR, ModelSpec, Side
from decoupled.model.states import Ragged
from decoupled.runtime.openvino.attention.base import split_heads
from decoupled.runtime.openvino.decode import Codes, parameters
from decoupled.runtime.openvino.embedding import cross_embedded, embedded
from decoupled.runtime.openvino.frame import NodeFrame
from decoupled.runtime.openvino.graph import (
    ACTIVATIONS,
    Graph,
    LoadedLinear,
    Range,
    Tensors,
    constant,
    count,
    integers,
    parameter,
    quantised_forms,
    rows,
    size,
)
from decoupled.runtime.openvino.layers import NodeStack
from decoupled.runtime.openvino.tokens import TokenPart, Tokens, Want

Ranges = Mapping[str, Range]

QUERY_STEP, STEP = 8, 16
"""Tokens to whose multiples the query of a pair, and texts and whole pairs, are padded: a shape that is new
takes as long as reading a passage, and memory for good. Sums over a row that is no multiple of a register's
16 floats end in a kernel of their own: then a text's last bits would depend on the longest of its batch."""

REDUCED = {"low": op.reduce_min, "high": op.reduce_max, "mean": op.reduce_mean}


def input_model(
    spec: ModelSpec,
    tensors: Tensors,
    side: Side,
    ranges: Ranges,
    *,
    vectors: bool = True,
    observe: bool = False,
) -> ov.Model:
    """`ids_BT, lengths_B, first, kind` to `states_BTW, vectors_BV`, for the inputs that `input_arrays` makes.

    Both sides have the same graph unless a learned projection applies to one of them alone.
    """
    graph = _graph(spec, tensors, ranges, observe=observe)
    ids_BT = parameter("ids", [-1, -1], "int32")
    lengths_B = parameter("lengths", [-1], "int32")
    first, kind = parameter("first", [1], "int64"), parameter("kind", [1], "int64")
    place_T = count(size(ids_BT, 1))
    real_BT = _real(place_T, lengths_B)
    # Padding takes the place of the last token, for which there is a position in every table.
    longest = op.convert(op.reduce_max(lengths_B, integers(0), True), "i64")
    position_T = op.add(op.minimum(place_T, op.subtract(longest, integers(1))), first)
    frame = NodeFrame(position=op.unsqueeze(position_T, integers(0)), real=real_BT)
    x_BTD = embedded(graph, spec, ids_BT, position_T, kind)
    part = TokenPart(value=x_BTD, tap="0.in")
    tokens = Tokens(parts=(part,), query=integers(1), batch=size(ids_BT, 0))
    kept = list[Node]() if spec.store == "kv" and side == "passage" else None
    stack = NodeStack(spec=spec.encoder, graph=graph, frame=frame, kept=kept)
    y_BTD = stack.run(tokens, first=0, last=spec.split, want="all", crossing=False)
    projected = spec.projected(side)
    states = graph.apply(y_BTD, "projection.down", "down.in") if projected else y_BTD
    if spec.store == "kv":
        # A query reads its passage from the first layer on, so that its states begin there.
        states = x_BTD if kept is None else op.concat([y_BTD, *kept], 2)
    if not vectors:
        return _model([states], [ids_BT, lengths_B, first, kind], graph)
    if own := spec.stacks.get(VECTOR):
        deeper = NodeStack(spec=own, graph=graph, frame=frame, prefix=VECTOR)
        tokens = replace(tokens, parts=(TokenPart(value=y_BTD, tap=f"{VECTOR}0.in"),))
        y_BTD = deeper.run(tokens, first=0, last=len(own.layers), want="all", crossing=False)
    pooled = _pooled(graph, spec, y_BTD, real_BT)
    return _model([states, pooled], [ids_BT, lengths_B, first, kind], graph)


def cross_model(
    spec: ModelSpec,
    tensors: Tensors,
    heads: Sequence[HeadKind],
    ranges: Ranges,
    layout: CodeLayout,
    *,
    last: int | None = None,
    observe: bool = False,
) -> ov.Model:
    """`query_1QW, asked_1, lengths_B, codes…` to the logits of each head, or of the exit after layer `last`.

    The query has `asked` tokens; the rest of its rows are padding.
    """
    graph = _graph(spec, tensors, ranges, observe=observe)
    query = parameter("query", [1, -1, spec.state_width("query")], "float32")
    query_length, lengths_B = parameter("asked", [1], "int32"), parameter("lengths", [-1], "int32")
    codes = parameters(layout)
    queries, passages = size(query, 1), count(size(codes.inputs[0], 1))
    own = op.convert(query_length, "i64")
    start = integers(spec.text.query_tokens) if spec.positions == "offset" else own
    # Padding takes the last real position, as above.
    place_Q = op.minimum(count(queries), op.subtract(own, integers(1)))
    position_T = op.concat([place_Q, op.add(passages, start)], 0)
    shape = op.concat([size(lengths_B, 0), queries], 0)
    real_BQ = op.broadcast(op.less(count(queries), own), shape)
    real_BP = _real(passages, lengths_B)
    real_BT = op.concat([real_BQ, real_BP], 1)
    parts = _parts(graph, spec, query, codes)
    tokens = Tokens(parts=parts, query=queries, batch=size(lengths_B, 0))
    if spec.cross_embed != "none":
        tokens = cross_embedded(graph, spec, tokens, position_T)
    position, ends_B1 = op.unsqueeze(position_T, integers(0)), _column(lengths_B)
    if spec.text.passage_first:
        place_BP = op.broadcast(passages, op.shape_of(real_BP))
        position = op.concat([op.add(op.unsqueeze(place_Q, integers(0)), ends_B1), place_BP], 1)
        if spec.store == "kv":
            tokens = _after(spec, graph, tokens, position, real_BQ, real_BP)
    if any(head.pooling == "last" for head in spec.heads):
        first = spec.text.passage_first
        ends_B1 = op.broadcast(own, op.shape_of(ends_B1)) if first else op.add(ends_B1, queries)
        tokens, position = _last_first(tokens, position, op.subtract(ends_B1, integers(1)))
    want, end = rows_for([spec.head(kind) for kind in heads]), last or len(spec.layers)
    frame = NodeFrame(position=position, real=real_BT)
    stack = NodeStack(spec=spec.encoder, graph=graph, frame=frame)
    y_BRD = stack.run(tokens, first=spec.split, last=end, want=want, crossing=True)
    if spec.split == end and want == "first":
        y_BRD = tokens.spread(y_BRD)  # no layer has met the passages: one row for all
    named = {kind: f"heads.{kind}" for kind in heads}
    if last is not None:
        named, final = {"rank": f"{EXITS}{last}"}, spec.encoder.final_norm
        # A pre-norm encoder normalises after its last layer, which an exit does not reach.
        y_BRD = graph.norm(y_BRD, "stack.norm", final) if final else y_BRD
    logits = [
        _head(graph, name, spec.head(kind), y_BRD, real_BT, want, queries)
        for kind, name in named.items()
    ]
    return _model(logits, [query, query_length, lengths_B, *codes.inputs], graph)


def _graph(spec: ModelSpec, tensors: Tensors, ranges: Ranges, *, observe: bool) -> Graph:
    quantised, observed = quantised_forms(spec), dict[str, Node]() if observe else None
    return Graph(tensors=tensors, ranges=ranges, observed=observed, quantised=quantised)


def rows_for(heads: Sequence[HeadSpec]) -> Want:
    """Rows of the last layer that these heads read."""
    if any(head.reads_all for head in heads):
        return "all"
    return "span" if any(head.kind == "span" for head in heads) else "first"


def _model(outputs: Sequence[Node], inputs: list[Node], graph: Graph) -> ov.Model:
    """The OpenVINO model; when calibrating, with reductions of each observed channel as further outputs."""
    results = [op.result(node) for node in outputs]
    axes = integers(0, 1)
    for tap, node in (graph.observed or {}).items():
        for name, reduce in REDUCED.items():
            extremes = reduce(node, axes, False)
            extremes.get_output_tensor(0).set_names({f"{tap}#{name}"})
            results.append(op.result(extremes))
    return ov.Model(results, inputs)


def _real(place_T: Node, lengths_B: Node) -> Node:
    return op.less(op.unsqueeze(place_T, integers(0)), _column(lengths_B))


def _column(lengths_B: Node) -> Node:
    return op.unsqueeze(op.convert(lengths_B, "i64"), integers(1))


def _after(
    spec: ModelSpec, graph: Graph, tokens: Tokens, position_BT: Node, asks_BQ: Node, read_BP: Node
) -> Tokens:
    """The tokens at the split, where the query read the stored keys and values of its passage below it."""
    query, passage = tokens.parts
    kinds = [layer.attention for layer in spec.layers[: spec.split]]
    # Keys, then values, of each layer: half of the numbers that it keeps each.
    halves = [(kind.cached_width // 2, kind.head_width) for kind in kinds for _ in range(2)]
    sizes = integers(spec.encoder.width, *(width for width, _ in halves))
    state, *kept = op.variadic_split(passage.value, constant(np.int64(2)), sizes).outputs()
    heads = [split_heads(x, width // of) for x, (width, of) in zip(kept, halves, strict=True)]
    past = list(zip(heads[::2], heads[1::2], strict=True))
    frame = NodeFrame(position=rows(position_BT, 0, tokens.query), real=asks_BQ, before=read_BP)
    stack = NodeStack(spec=spec.encoder, graph=graph, frame=frame, past=past)
    alone = replace(tokens, parts=(replace(query, value=tokens.spread(query.value), shared=False),))
    moved = stack.run(alone, first=0, last=spec.split, want="all", crossing=False)
    parts = (TokenPart(value=moved, tap=query.tap), TokenPart(value=state, tap=passage.tap))
    return replace(tokens, parts=parts)


def _last_first(tokens: Tokens, position: Node, last_B1: Node) -> tuple[Tokens, Node]:
    """Tokens and positions in which the row that is read has changed places with the first."""
    x_BTD, zero = tokens.value, constant(np.int64(0))
    place_1T = op.unsqueeze(count(size(x_BTD, 1)), integers(0))
    order_BT = op.select(op.equal(place_1T, last_B1), zero, place_1T)
    order_BT = op.select(op.equal(place_1T, zero), last_B1, order_BT)
    position_BT = op.broadcast(position, op.shape_of(order_BT))
    moved = op.gather(x_BTD, order_BT, constant(np.int64(1)), 1)
    parts = (TokenPart(value=moved, tap="swapped"),)
    return replace(tokens, parts=parts), op.gather_elements(position_BT, order_BT, 1)


def input_arrays(
    spec: ModelSpec, side: Side, ids: Ragged, query_length: int, to: int | None = None
) -> list[npt.NDArray[Any]]:
    """A batch of texts of one side, padded (to `to` tokens), the position of the first, and their type."""
    joint = side == "passage" and spec.positions == "joint"
    first = query_length if joint else spec.first_position(side)
    kind = spec.text.query_type if side == "query" else spec.text.passage_type
    padded_BT, _ = ids.pad(to)
    lengths_B = ids.lengths.astype(np.int32)
    return [padded_BT.astype(np.int32), lengths_B, np.array([first]), np.array([kind])]


def _pooled(graph: Graph, spec: ModelSpec, x_BTD: Node, real_BT: Node) -> Node:
    """A unit vector per text: the mean of its states, through the learned map where there is one."""
    x_BD = _mean(x_BTD, real_BT)
    if spec.vector is not None:
        x_BD = op.matmul(x_BD, constant(graph.array("vector.weight")), False, True)
    # The epsilon only matters for a text of zeros.
    return op.normalize_l2(x_BD, integers(1), 1e-24, "max")


def _mean(x_BTD: Node, real_BT: Node) -> Node:
    weight_BT1 = op.unsqueeze(op.convert(real_BT, "f32"), integers(2))
    total = op.reduce_sum(op.multiply(x_BTD, weight_BT1), integers(1), False)
    return op.divide(total, op.reduce_sum(weight_BT1, integers(1), False))


def _parts(graph: Graph, spec: ModelSpec, query: Node, codes: Codes) -> tuple[TokenPart, TokenPart]:
    """Query and passage rows as wide as the layers, with the narrow codes that they come from."""
    query_part = TokenPart(value=query, tap="states.query", shared=True)
    read = TokenPart(value=codes.z, tap="codes" if codes.restore else "states.passage")
    if codes.restore is not None:
        read = _widened(graph, read, codes.restore, "states.passage")
    if spec.projected("query"):
        query_part = _widened(graph, query_part, graph.load("projection.up"), "restored.query")
    if spec.projected("passage"):
        read = _widened(graph, read, graph.load("projection.up"), "restored.passage")
    return query_part, read


def _widened(graph: Graph, part: TokenPart, up: LoadedLinear, tap: str) -> TokenPart:
    value = graph.linear(graph.source(part.value, part.tap), up)
    # The codes are kept beside the states: layers may read them with folded matrices.
    narrow = {"narrow": part.value, "narrow_tap": part.tap}
    return TokenPart(value=value, tap=tap, up=up, shared=part.shared, **narrow)


def _head(
    graph: Graph, name: str, spec: HeadSpec, x_BRD: Node, real_BT: Node, want: Want, query: Node
) -> Node:
    if spec.kind == "span":
        x = x_BRD if want == "span" else op.concat([rows(x_BRD, 0, 1), rows(x_BRD, query)], 1)
    elif spec.pooling == "mean":
        x = _mean(x_BRD, real_BT)
    else:
        x = op.squeeze(rows(x_BRD, 0, 1), integers(1))
    if spec.dense is not None:
        x = ACTIVATIONS[spec.dense.activation](graph.plain(x, graph.load(f"{name}.dense")))
        if spec.dense.norm is not None:
            x = graph.norm(x, f"{name}.norm", spec.dense.norm)
    return graph.plain(x, graph.load(f"{name}.out"))
