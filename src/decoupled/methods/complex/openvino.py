"""Complex word embeddings as nodes."""

import numpy as np
from openvino import Node
from openvino import opset15 as op

from decoupled.methods.complex.part import Complex
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.table import TOKENS
from decoupled.runtime.openvino.graph import Graph, constant, integers
from decoupled.runtime.openvino.table.base import table_rows, token_rows


@token_rows.register
def _(kind: Complex, graph: Graph, spec: EmbeddingSpec, ids_BT: Node, position_T: Node) -> Node:
    speed = constant(graph.array(kind.frequencies(spec.vocab, spec.width)[0]))
    if kind.share != "words":
        speed = op.gather(speed, ids_BT, constant(np.int64(0)))
    place_1T1 = op.unsqueeze(op.convert(position_T, "f32"), integers(0, 2))
    angle = op.multiply(place_1T1, speed)
    cos, sin, x = op.cos(angle), op.sin(angle), table_rows(graph, f"{TOKENS}.table", ids_BT)
    if not kind.phases:
        return op.concat([op.multiply(x, cos), op.multiply(x, sin)], 2)
    half = spec.width // 2
    real, other = op.variadic_split(x, constant(np.int64(2)), integers(half, half)).outputs()
    # The real part of (a + ib)·exp(iφ); the imaginary part follows.
    turned = op.subtract(op.multiply(real, cos), op.multiply(other, sin))
    return op.concat([turned, op.add(op.multiply(real, sin), op.multiply(other, cos))], 2)
