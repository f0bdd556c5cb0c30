"""The rows of a batch in parts: the query's, which all pairs share until they meet, and the passages'.

A part may come from narrow codes. Then a linear layer of it is one layer of the codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from openvino import Node
from openvino import opset15 as op

from decoupled.runtime.openvino.graph import Graph, LoadedLinear, NodeSource, integers, rows

Want = Literal["all", "first", "query", "span"]
"""Which rows a layer computes: all, the first, the query's, or the first and the passage's."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenPart:
    """Rows of one side: `value_BTD`, which is `up` of the narrower `narrow_BTC` where there is one."""

    value: Node
    tap: str
    """The name of its range."""
    narrow: Node | None = None
    up: LoadedLinear | None = None
    narrow_tap: str = ""
    shared: bool = False
    """Whether one row of the batch serves all pairs."""

    def source(
        self, graph: Graph, layers: Sequence[LoadedLinear]
    ) -> tuple[NodeSource, list[LoadedLinear]]:
        """The cheapest input to compute these layers from, and the layers as functions of that input."""
        up = self.up
        # In int8, codes without a measured range would have to run in floats.
        calibrated = not graph.ranges or self.narrow_tap in graph.ranges
        if self.narrow is None or up is None or not calibrated:
            return graph.source(self.value, self.tap), list(layers)
        return graph.source(self.narrow, self.narrow_tap), [linear.after(up) for linear in layers]

    def first(self) -> TokenPart:
        """The part with only its first row."""
        narrow = None if self.narrow is None else rows(self.narrow, 0, 1)
        return replace(self, value=rows(self.value, 0, 1), narrow=narrow)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """The rows of each pair, the query's before the passage's, in one part or in two."""

    parts: tuple[TokenPart, ...]
    query: Node
    """`[1]`: the number of rows of the query."""
    batch: Node
    """`[1]`: the number of pairs."""

    def take(self, want: Want) -> Tokens:
        """The tokens with only the wanted rows."""
        if want == "all":
            return self
        if len(self.parts) == 2:
            query, passage = self.parts
            first = query.first()
            parts = {"first": (first,), "query": (query,), "span": (first, passage)}
            return replace(self, parts=parts[want])
        (part,) = self.parts
        if want == "first":
            return replace(self, parts=(part.first(),))
        if want == "query":
            return replace(self, parts=(replace(part, value=rows(part.value, 0, self.query)),))
        passage = replace(part, value=rows(part.value, self.query))
        return replace(self, parts=(part.first(), passage))

    def divided(self) -> Tokens:
        """The tokens with query and passage as two parts."""
        if len(self.parts) == 2:
            return self
        (part,) = self.parts
        passage = TokenPart(value=rows(part.value, self.query), tap=f"{part.tap}.passage")
        return replace(self, parts=(*self.take("query").parts, passage))

    @property
    def value(self) -> Node:
        """`[B,T,D]`, or `[1,T,D]` where all pairs share every row."""
        return self.join([part.value for part in self.parts])

    def join(self, nodes: Sequence[Node]) -> Node:
        """Values that were computed from each part, joined as one sequence."""
        if len(nodes) == 1:
            return nodes[0]
        spread = [
            self.spread(node) if part.shared else node
            for part, node in zip(self.parts, nodes, strict=True)
        ]
        return op.concat(spread, 1)

    def spread(self, node: Node) -> Node:
        """A shared `[1,T,…]` node repeated for each pair of the batch."""
        shape = op.concat([self.batch, integers(1, 1)], 0)
        return op.broadcast(node, shape, broadcast_spec="BIDIRECTIONAL")

    def linear(self, graph: Graph, layers: Sequence[LoadedLinear]) -> list[Node]:
        """Each layer applied to all rows: `[B,T,O]`."""
        products: list[list[Node]] = [[] for _ in layers]
        for part in self.parts:
            source, fitting = part.source(graph, layers)
            for place, linear in zip(products, fitting, strict=True):
                place.append(graph.linear(source, linear))
        return [self.join(nodes) for nodes in products]


def take_rows(x: Node, want: Want, query: Node, axis: int) -> Node:
    """The wanted rows, along an axis, of a node that has every row."""
    if want == "all":
        return x
    first = rows(x, 0, 1, axis)
    if want == "first":
        return first
    if want == "query":
        return rows(x, 0, query, axis)
    return op.concat([first, rows(x, query, axis=axis)], axis)
