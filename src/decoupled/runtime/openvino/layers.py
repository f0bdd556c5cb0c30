"""The stack as nodes: layers that compute no row that nobody reads, mirrored from `decoupled.model.nn`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt
from openvino import Node
from openvino import opset15 as op

from decoupled.model import annex
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.spec import EncoderSpec, ModelSpec
from decoupled.runtime.openvino.attention import NodeContext, attend
from decoupled.runtime.openvino.frame import NodeFrame
from decoupled.runtime.openvino.graph import ACTIVATIONS, Graph, NodeSource, constant
from decoupled.runtime.openvino.table import token_rows
from decoupled.runtime.openvino.tokens import TokenPart, Tokens, Want

Units = slice | npt.NDArray[np.int64]

WILD = 16
"""Hidden units whose activations stay floats: a handful reach ten times as far as the rest."""


def unsupported_reason(spec: ModelSpec) -> str | None:
    """Why this model cannot be lowered; None when it can."""
    for layer in (layer for stack in spec.stacks.values() for layer in stack.layers):
        if not annex.registers(attend, layer.attention, "openvino"):
            return f"it lacks {layer.attention.kind} attention"
        if layer.more:
            return f"it lacks {layer.more[0].part.kind} blocks"
        if layer.reversible:
            return "it lacks reversible layers"
    if not annex.registers(token_rows, spec.encoder.embedding.tokens, "openvino"):
        return f"it lacks {spec.encoder.embedding.tokens.kind} token tables"
    if spec.text.structure is not None:
        return f"it lacks {spec.text.structure.kind} rows beside tokens"
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeStack:
    """Layers of one encoder over their slots."""

    spec: EncoderSpec
    graph: Graph
    frame: NodeFrame
    prefix: str = ""
    """Prefix of the names of its tensors and ranges."""
    past: Sequence[tuple[Node, Node]] = ()
    kept: list[Node] | None = None

    def run(self, tokens: Tokens, *, first: int, last: int, want: Want, crossing: bool) -> Node:
        """Layers `first..last-1`; `[B,R,D]`, the wanted rows of the last one.

        When `crossing`, a layer with frozen passages moves the query's rows only.
        """
        relative = self._relative() if first < last else None
        taken: Want = "all"
        for number in range(first, last):
            layer = self.spec.layers[number]
            frozen = crossing and layer.passage == "frozen"
            final = number == last - 1
            if frozen:
                # Passage rows only serve as keys and values here, and stay a part of their own.
                tokens = tokens.divided()
                only: Want = "first" if final and want == "first" else "query"
                moved = self._layer(tokens, number, only, relative)
                part = TokenPart(value=moved, tap=f"{self.prefix}{number + 1}.in")
                if only == "first":
                    return self._finish(moved, last)
                tokens = replace(tokens, parts=(part, tokens.parts[1]))
                taken = "all"
            else:
                # Only the last layer may leave rows out; all others are read by the layer above.
                taken = want if final else "all"
                moved = self._layer(tokens, number, taken, relative)
                part = TokenPart(value=moved, tap=f"{self.prefix}{number + 1}.in")
                tokens = replace(tokens, parts=(part,))
        x_BRD = tokens.value if taken == want else tokens.take(want).value
        return self._finish(x_BRD, last) if first < last else x_BRD

    def _finish(self, x_BRD: Node, last: int) -> Node:
        final = self.spec.final_norm
        if final is None or last < len(self.spec.layers):
            return x_BRD
        return self.graph.norm(x_BRD, "stack.norm", final)

    def _relative(self) -> Node | None:
        spec = self.spec.relative
        if spec is None:
            return None
        name = f"{self.prefix}stack.relative"
        table = constant(self.graph.array(f"{name}.table.weight"))
        return self.graph.norm(table, f"{name}.norm", spec.norm) if spec.norm else table

    def _layer(self, tokens: Tokens, number: int, want: Want, relative: Node | None) -> Node:
        layer, graph = self.spec.layers[number], self.graph
        name = f"{self.prefix}stack.attention.{layer.attention_slot}"
        source = self._normed(tokens, layer, name, number)
        context = NodeContext(
            graph=graph,
            frame=self.frame,
            name=f"{name}.attention",
            want=want,
            tap=f"{self.prefix}{number}.out",
            relative=relative,
            past=self.past[number] if self.past else None,
            kept=self.kept,
        )
        y_BRD = op.add(tokens.take(want).value, attend(layer.attention, source, context))
        if layer.order == "post" and layer.attention_norm:
            y_BRD = graph.norm(y_BRD, f"{name}.norm", layer.norm)
        return self._feed_forward(y_BRD, number)

    def _normed(self, tokens: Tokens, layer: LayerSpec, name: str, number: int) -> Tokens:
        """The rows that the attention reads: as they are, or normalised."""
        if layer.order == "post" or not layer.attention_norm:
            return tokens
        parts = tuple(
            TokenPart(
                value=self.graph.norm(part.value, f"{name}.norm", layer.norm),
                tap=f"{self.prefix}{number}.normed.{place}",
                shared=part.shared,
            )
            for place, part in enumerate(tokens.parts)
        )
        return replace(tokens, parts=parts)

    def _feed_forward(self, x_BRD: Node, number: int) -> Node:
        layer, graph = self.spec.layers[number], self.graph
        name = f"{self.prefix}stack.ffn.{layer.ffn_slot}"
        normed = graph.norm(x_BRD, f"{name}.norm", layer.norm) if layer.order == "pre" else x_BRD
        source = graph.source(normed, f"{self.prefix}{number}.ffn")
        down = graph.load(f"{name}.down")
        # Of a low-rank output layer, the first factor reads the hidden units.
        reader = down.first or down
        read: list[Node] = []
        for units, tap in self._units(number):
            hidden = self._hidden(source, number, units)
            # The bias must be added once, so only the first group of units carries it.
            part = reader.columns(units, bias=not read)
            read.append(graph.linear(graph.source(hidden, tap, units), part))
        if down.first is not None:
            between = graph.source(reduce(op.add, read), f"{self.prefix}{number}.down>")
            read = [graph.linear(between, replace(down, first=None))]
        y_BRD = reduce(op.add, read, x_BRD)
        return graph.norm(y_BRD, f"{name}.norm", layer.norm) if layer.order == "post" else y_BRD

    def _hidden(self, source: NodeSource, number: int, units: Units) -> Node:
        layer, graph = self.spec.layers[number], self.graph
        name = f"{self.prefix}stack.ffn.{layer.ffn_slot}"
        hidden = ACTIVATIONS[layer.ffn.activation](
            graph.linear(source, graph.load(f"{name}.up").select(units))
        )
        if not layer.ffn.gated:
            return hidden
        return op.multiply(hidden, graph.linear(source, graph.load(f"{name}.gate").select(units)))

    def _units(self, number: int) -> list[tuple[Units, str]]:
        """Hidden units with the name of their range; the few that reach far are a group of their own."""
        tap = f"{self.prefix}{number}.down"
        seen = self.graph.ranges.get(tap)
        if seen is None or len(seen.low) <= 2 * WILD:
            return [(slice(None), tap)]
        # By falling width of the range: low - high is most negative for the widest.
        order = np.argsort(seen.low - seen.high, kind="stable")
        wild, calm = np.sort(order[:WILD]), np.sort(order[WILD:])
        return [(calm, tap), (wild, "")]
