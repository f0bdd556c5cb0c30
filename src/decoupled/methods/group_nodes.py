"""Units of group linear layers as nodes."""

import numpy as np
from openvino import Node
from openvino import opset15 as op

from decoupled.methods.group_linear import GroupLayer, GroupUnit
from decoupled.runtime.openvino.graph import ACTIVATIONS, Graph, constant, integers


def grouped(graph: Graph, name: str, unit: GroupUnit, x_BTI: Node) -> Node:
    """`[B,T,inputs]` to `[B,T,outputs]`, row by row; in floats, however the matrices are held."""
    act, layers = ACTIVATIONS[unit.activation], list(enumerate(unit.layers))
    if unit.project:
        x_BTI = act(_layer(graph, name, unit, *layers.pop(0), x_BTI))
    y = act(_layer(graph, name, unit, *layers.pop(0), x_BTI))
    for number, layer in layers:
        y = _layer(graph, name, unit, number, layer, _mixed(x_BTI, y, layer.groups))
        last = number == len(unit.layers) - 1
        y = y if unit.linear_end and last else act(y)
    return y


def _mixed(x: Node, y: Node, groups: int) -> Node:
    """Both inputs beside each other in each group."""
    if groups == 1:
        return op.concat([x, y], 2)
    parts = [op.reshape(part, integers(0, 0, groups, -1), True) for part in (x, y)]
    return op.reshape(op.concat(parts, 3), integers(0, 0, -1), True)


def _layer(
    graph: Graph, name: str, unit: GroupUnit, number: int, layer: GroupLayer, x: Node
) -> Node:
    matrices = [graph.load(f"{name}.{number}.groups.{g}") for g in range(layer.groups)]
    if layer.groups == 1:
        y = graph.plain(x, matrices[0])
        return graph.norm(y, f"{name}.{number}.norm", unit.norm) if unit.norm else y
    weight_GOI = np.stack([one.matrix() for one in matrices])
    bias_G1O = np.stack([one.bias for one in matrices if one.bias is not None])[:, None]
    # [B,T,G·I] -> [B,G,T,I]
    x_BGTI = op.transpose(
        op.reshape(x, integers(0, 0, layer.groups, -1), True), integers(0, 2, 1, 3)
    )
    y_BGTO = op.add(op.matmul(x_BGTI, constant(weight_GOI), False, True), constant(bias_G1O))
    y = op.transpose(y_BGTO, integers(0, 2, 1, 3))
    if unit.shuffle:
        # [B,T,G,O] -> [B,T,O,G], read again as G groups: the shuffle of the torch module.
        turned = op.transpose(y, integers(0, 1, 3, 2))
        y = op.reshape(turned, integers(0, 0, layer.groups, layer.outputs // layer.groups), True)
    if unit.norm:
        y = graph.norm(y, f"{name}.{number}.norm", unit.norm)
    return op.reshape(y, integers(0, 0, -1), True)
