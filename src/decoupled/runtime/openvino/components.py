"""The two components of a model as OpenVINO models with dynamic shapes, made from its spec and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import Node
from openvino import opset15 as op

from decoupled.model.codec import Layout
from decoupled.model.parts.head import HeadKind, HeadSpec
from decoupled.model.spec import ModelSpec, Side
from decoupled.model.states import Ragged
from decoupled.runtime.openvino.decode import Codes, parameters
from decoupled.runtime.openvino.embedding import cross_embedded, embedded
from decoupled.runtime.openvino.frame import Frame
from decoupled.runtime.openvino.graph import (
    ACTIVATIONS,
    Graph,
    Range,
    Tensors,
    constant,
    count,
    integers,
    parameter,
    rows,
    size,
)
from decoupled.runtime.openvino.layers import Stack
from decoupled.runtime.openvino.matrices import quantised_forms
from decoupled.runtime.openvino.tokens import Part, Tokens, Want

Ranges = Mapping[str, Range]

REDUCED = {"low": op.reduce_min, "high": op.reduce_max, "mean": op.reduce_mean}


def input_model(
    spec: ModelSpec, tensors: Tensors, side: Side, ranges: Ranges, *, observe: bool = False
) -> ov.Model:
    """`ids_BT, lengths_B, first, kind` to `states_BTW, vectors_BV`, for the inputs that `input_arrays` makes.

    Both sides have the same graph unless only one of them is squeezed by a learned projection.
    """
    graph = _graph(spec, tensors, ranges, observe=observe)
    ids_BT = parameter("ids", [-1, -1], "int32")
    lengths_B = parameter("lengths", [-1], "int32")
    first, kind = parameter("first", [1], "int64"), parameter("kind", [1], "int64")
    place_T = count(size(ids_BT, 1))
    real_BT = _real(place_T, lengths_B)
    position_T = op.add(place_T, first)
    x_BTD = embedded(graph, spec, ids_BT, position_T, kind)
    frame = Frame(position=position_T, real=real_BT)
    one = integers(1)
    tokens = Tokens(parts=(Part(value=x_BTD, tap="0.in"),), query=one, batch=size(ids_BT, 0))
    stack = Stack(spec=spec.encoder, graph=graph, frame=frame)
    y_BTD = stack.run(tokens, first=0, last=spec.split, want="all", crossing=False)
    states = y_BTD
    if spec.projected(side):
        states = graph.apply(y_BTD, "projection.down", "down.in")
    vectors = _pooled(graph, spec, y_BTD, real_BT)
    return _model([states, vectors], [ids_BT, lengths_B, first, kind], graph)


def cross_model(
    spec: ModelSpec,
    tensors: Tensors,
    heads: Sequence[HeadKind],
    ranges: Ranges,
    layout: Layout | None = None,
    *,
    observe: bool = False,
) -> ov.Model:
    """`query_1QW, lengths_B, codes…` to the logits of each head; without a layout the codes are states."""
    graph = _graph(spec, tensors, ranges, observe=observe)
    query = parameter("query", [1, -1, spec.state_width("query")], "float32")
    lengths_B = parameter("lengths", [-1], "int32")
    codes = parameters(layout) if layout is not None else _plain(spec)
    queries, passages = size(query, 1), count(size(codes.inputs[0], 1))
    real_BP = _real(passages, lengths_B)
    start = queries
    if spec.positions == "offset":
        start = integers(spec.text.query_tokens)
    position_T = op.concat([count(queries), op.add(passages, start)], 0)
    yes = op.broadcast(constant(np.bool_(True)), op.concat([size(lengths_B, 0), queries], 0))
    real_BT = op.concat([yes, real_BP], 1)
    tokens = Tokens(
        parts=(_query_part(graph, spec, query), _passage_part(graph, spec, codes)),
        query=queries,
        batch=size(lengths_B, 0),
    )
    if spec.cross_embed != "none":
        tokens = cross_embedded(graph, spec, tokens, position_T)
    frame = Frame(position=position_T, real=real_BT)
    want = wanted([spec.head(kind) for kind in heads])
    stack = Stack(spec=spec.encoder, graph=graph, frame=frame)
    count_of = len(spec.layers)
    y_BRD = stack.run(tokens, first=spec.split, last=count_of, want=want, crossing=True)
    if spec.split == count_of and want == "first":
        y_BRD = tokens.spread(y_BRD)  # no layer has met the passages: one row for all
    logits = [_head(graph, spec.head(kind), y_BRD, real_BT, want, queries) for kind in heads]
    return _model(logits, [query, lengths_B, *codes.inputs], graph)


def _graph(spec: ModelSpec, tensors: Tensors, ranges: Ranges, *, observe: bool) -> Graph:
    quantised = quantised_forms(spec.encoder)
    return Graph(
        tensors=tensors, ranges=ranges, observed={} if observe else None, quantised=quantised
    )


def wanted(heads: Sequence[HeadSpec]) -> Want:
    """Rows of the last layer that these heads read."""
    if any(head.reads_all for head in heads):
        return "all"
    return "span" if any(head.kind == "span" for head in heads) else "first"


def _model(outputs: Sequence[Node], inputs: list[Node], graph: Graph) -> ov.Model:
    """The model; when calibrating, with what is observed of each channel of each input."""
    results = [op.result(node) for node in outputs]
    axes = integers(0, 1)
    for tap, node in (graph.observed or {}).items():
        for name, reduce in REDUCED.items():
            found = reduce(node, axes, False)
            found.get_output_tensor(0).set_names({f"{tap}#{name}"})
            results.append(op.result(found))
    return ov.Model(results, inputs)


def _real(place_T: Node, lengths_B: Node) -> Node:
    lengths_B1 = op.unsqueeze(op.convert(lengths_B, "i64"), integers(1))
    return op.less(op.unsqueeze(place_T, integers(0)), lengths_B1)


def input_arrays(
    spec: ModelSpec, side: Side, ids: Ragged, query_length: int
) -> list[npt.NDArray[Any]]:
    """A padded batch of texts of one side, the position of their first token, and their type."""
    joint = side == "passage" and spec.positions == "joint"
    first = query_length if joint else spec.first_position(side)
    kind = spec.text.query_type if side == "query" else spec.text.passage_type
    padded_BT, _ = ids.pad()
    lengths_B = ids.lengths.astype(np.int32)
    return [padded_BT.astype(np.int32), lengths_B, np.array([first]), np.array([kind])]


def _pooled(graph: Graph, spec: ModelSpec, x_BTD: Node, real_BT: Node) -> Node:
    """A unit vector per text."""
    x_BD = _mean(x_BTD, real_BT)
    if spec.vector is not None:
        x_BD = op.matmul(x_BD, constant(graph.array("vector.weight")), False, True)
    return op.normalize_l2(x_BD, integers(1), 1e-24, "max")


def _mean(x_BTD: Node, real_BT: Node) -> Node:
    weight_BT1 = op.unsqueeze(op.convert(real_BT, "f32"), integers(2))
    total = op.reduce_sum(op.multiply(x_BTD, weight_BT1), integers(1), False)
    return op.divide(total, op.reduce_sum(weight_BT1, integers(1), False))


def _plain(spec: ModelSpec) -> Codes:
    states = parameter("states", [-1, -1, spec.state_width("passage")], "float32")
    return Codes(inputs=[states], z=states, restore=None)


def _query_part(graph: Graph, spec: ModelSpec, query: Node) -> Part:
    if not spec.projected("query"):
        return Part(value=query, tap="states.query", shared=True)
    up = graph.load("projection.up")
    value = graph.linear(graph.source(query, "states.query"), up)
    return Part(
        value=value,
        tap="restored.query",
        narrow=query,
        up=up,
        narrow_tap="states.query",
        shared=True,
    )


def _passage_part(graph: Graph, spec: ModelSpec, codes: Codes) -> Part:
    z, restore = codes.z, codes.restore
    if not spec.projected("passage"):
        if restore is None:
            return Part(value=z, tap="states.passage")
        value = graph.linear(graph.source(z, "codes"), restore)
        return Part(value=value, tap="states.passage", narrow=z, up=restore, narrow_tap="codes")
    if restore is not None:
        z = graph.linear(graph.source(z, "codes"), restore)
    up = graph.load("projection.up")
    value = graph.linear(graph.source(z, "states.passage"), up)
    return Part(value=value, tap="restored.passage", narrow=z, up=up, narrow_tap="states.passage")


def _head(
    graph: Graph, spec: HeadSpec, x_BRD: Node, real_BT: Node, want: Want, query: Node
) -> Node:
    name = f"heads.{spec.kind}"
    if spec.kind == "span":
        x = x_BRD if want == "span" else op.concat([rows(x_BRD, 0, 1), rows(x_BRD, query)], 1)
    elif spec.pooling == "mean":
        x = _mean(x_BRD, real_BT)
    else:
        x = op.squeeze(rows(x_BRD, 0, 1), integers(1))
    if spec.dense is not None:
        x = graph.plain(x, graph.load(f"{name}.dense"))
        x = ACTIVATIONS[spec.dense.activation](x)
        if spec.dense.norm is not None:
            x = graph.norm(x, f"{name}.norm", spec.dense.norm)
    return graph.plain(x, graph.load(f"{name}.out"))
