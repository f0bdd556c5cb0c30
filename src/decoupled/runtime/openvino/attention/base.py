"""What lowerings of attention kinds have in common, and their registry by kind."""

from dataclasses import dataclass
from functools import singledispatch

from openvino import Node
from openvino import opset15 as op

from decoupled.errors import InputError
from decoupled.model import annex
from decoupled.model.parts.attention import Attention
from decoupled.runtime.openvino.frame import NodeFrame
from decoupled.runtime.openvino.graph import Graph, integers
from decoupled.runtime.openvino.tokens import Tokens, Want


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeContext:
    """The context of an attention: what it needs beside its tokens."""

    graph: Graph
    frame: NodeFrame
    name: str
    want: Want
    tap: str = ""
    """The name of the range of the output matrix's input."""
    relative: Node | None = None
    past: tuple[Node, Node] | None = None
    """Keys and values `[B,G,P,K]` of a text that comes before all tokens."""
    kept: list[Node] | None = None
    """What keys and values of these tokens are added to, `[B,T,G·K]` each, to be stored."""

    def out(self, seen_BRI: Node) -> Node:
        """All heads through the output matrix, `[B,R,D]`."""
        return self.graph.apply(seen_BRI, f"{self.name}.out", self.tap)


@singledispatch
def attend(kind: Attention, tokens: Tokens, context: NodeContext) -> Node:
    """`[B,R,D]` of the wanted rows: what the file of a kind registered here."""
    if annex.registers(attend, kind, "openvino"):
        return attend(kind, tokens, context)
    raise InputError(f"the openvino runtime lacks {kind.kind} attention; choose torch")


def projected(tokens: Tokens, context: NodeContext) -> tuple[Node, Node, Node]:
    """Queries of the wanted rows, keys and values of all of them: `[B,T,H·K]`."""
    query, key, value = (
        context.graph.load(f"{context.name}.{part}") for part in ("query", "key", "value")
    )
    # All three read one rounded source, so rounding is done once.
    if context.want == "all":
        q, k, v = tokens.linear(context.graph, (query, key, value))
        return q, k, v
    k, v = tokens.linear(context.graph, (key, value))
    taken = tokens.take(context.want)
    (q,) = taken.linear(context.graph, (query,))
    # Keys differ between pairs even where the query's rows do not.
    return (taken.spread(q) if all(part.shared for part in taken.parts) else q), k, v


def split_heads(x_BTI: Node, heads: int) -> Node:
    """`[B,T,H·K]` to `[B,H,T,K]`."""
    # [B,T,H·K] -> [B,T,H,K] -> [B,H,T,K]; 0 keeps a dimension and -1 infers one.
    return op.transpose(op.reshape(x_BTI, integers(0, 0, heads, -1), True), integers(0, 2, 1, 3))


def merge_heads(x_BHTK: Node) -> Node:
    """`[B,H,T,K]` to `[B,T,H·K]`."""
    return op.reshape(op.transpose(x_BHTK, integers(0, 2, 1, 3)), integers(0, 0, -1), True)
