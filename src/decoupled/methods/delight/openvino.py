"""DeLighT's attention as nodes: ordinary attention over what its unit makes of each token."""

from dataclasses import replace

from openvino import Node

from decoupled.methods.delight.part import Delight
from decoupled.methods.group_nodes import grouped
from decoupled.model.parts.attention.dot import SelfAttention
from decoupled.runtime.openvino.attention.base import NodeContext, attend
from decoupled.runtime.openvino.tokens import TokenPart, Tokens


@attend.register
def _(kind: Delight, tokens: Tokens, context: NodeContext) -> Node:
    graph, name = context.graph, f"{context.name}.unit"
    unit = kind.unit(graph.load(f"{name}.0.groups.0").inputs)
    parts = tuple(
        TokenPart(
            value=grouped(graph, name, unit, part.value),
            tap=f"{context.tap}.unit.{place}",
            shared=part.shared,
        )
        for place, part in enumerate(tokens.parts)
    )
    head = SelfAttention(heads=1, head_width=kind.head_width)
    return attend(head, replace(tokens, parts=parts), context)
