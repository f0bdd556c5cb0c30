"""Parameters and arithmetic of a split model, from its spec: what it holds, what each text and pair costs.

One MAC is a multiplication with its addition; FLOPs are twice the MACs. Matrix products count; norms,
softmax, activations and biases do not. `work` counts what our components compute: only the rows that a head
reads. `lab.study.published` counts as DeFormer does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from decoupled.errors import InputError
from decoupled.model.parts.head import HeadKind, HeadSpec
from decoupled.model.spec import ModelSpec, Side


@dataclass(frozen=True, kw_only=True)
class Work:
    """Multiply-accumulate operations (MACs), divided by when they happen."""

    passage: int
    """MACs for each passage, once, when it is indexed."""
    query: int
    """MACs for each query, once, however many passages it meets."""
    cross: int
    """MACs for each pair of a query and a passage."""

    def online(self, passages: int = 1) -> int:
        """MACs that a query waits for, against `passages` stored passages."""
        return self.query + passages * self.cross

    def whole(self) -> int:
        """MACs of one pair of which nothing was computed before."""
        return self.passage + self.query + self.cross


def work(
    spec: ModelSpec,
    *,
    query: int,
    passage: int,
    nodes: int = 0,
    heads: Sequence[HeadKind] | None = None,
) -> Work:
    """The MACs of both components for a query and a passage of so many tokens, specials included.

    `heads` defaults to the first one. A joint model (split 0) has nothing to do per text but its embedding.
    A passage that is read as a tree has a row for each of its `nodes` too.
    """
    if query < 1 or passage < 1:
        raise InputError(f"query={query}, passage={passage} tokens; give at least 1 of each")
    read = spec.heads[:1] if heads is None else [spec.head(kind) for kind in heads]
    rows = passage + nodes
    below = (block.part for layer in spec.layers[: spec.split] for block in layer.blocks)
    gathered = sum(part.gathering(rows, nodes) for part in below)
    return Work(
        passage=_input(spec, "passage", rows) + gathered,
        query=_input(spec, "query", query),
        cross=_cross(spec, query, rows, read),
    )


def _input(spec: ModelSpec, side: Side, tokens: int) -> int:
    width, vector = spec.encoder.width, spec.vector
    # By keys and values a query reads each passage in every layer, so that no layer runs but once.
    alone = 0 if spec.store == "kv" and side == "query" else spec.split
    lower = (*spec.layers[:alone], *(vector.layers if vector else ()))
    total = tokens * spec.encoder.embedding.macs(width)
    total += sum(
        layer.macs(width, rows=tokens, tokens=tokens, table=_relative(spec)) for layer in lower
    )
    if spec.projected(side):
        total += tokens * width * spec.state_width(side)
    return total + (width * vector.width if vector else 0)


def _cross(spec: ModelSpec, query: int, passage: int, heads: Sequence[HeadSpec]) -> int:
    width, both = spec.encoder.width, query + passage
    sides: tuple[tuple[Side, int], ...] = (("query", query), ("passage", passage))
    total = sum(t * width * spec.state_width(side) for side, t in sides if spec.projected(side))
    # Rows of the last layer that these heads read, as `nn.head.rows_needed`.
    last = 1 + passage if any(head.kind == "span" for head in heads) else 1
    if not heads or any(head.reads_all for head in heads):
        last = both
    for layer in spec.layers[: spec.split] if spec.store == "kv" else ():
        seen = 2 * query * passage * layer.attention.units * layer.attention.unit_width
        total += seen + layer.macs(width, rows=query, tokens=query)
    upper = spec.layers[spec.split :]
    for number, layer in enumerate(upper, 1):
        rows = last if number == len(upper) else both
        if layer.passage == "frozen":
            # A one-way layer computes new rows for the query alone.
            rows = min(rows, query)
        total += layer.macs(width, rows=rows, tokens=both, table=_relative(spec))
    return total + sum(head.macs(width, passage) for head in heads)


def _relative(spec: ModelSpec) -> int:
    return spec.encoder.relative.rows if spec.encoder.relative else 0


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """How many numbers each part holds. Layers that share a slot count once."""

    embedding: int
    layers: int
    """Layers, the norm after the last, and the table of relative positions."""
    pooler: int
    """Parameters of the hidden layers of the heads."""
    outputs: int
    """Parameters of the output layers of the heads."""
    split: int
    """What a split adds: projection, vector, late interaction, tables at the start of the cross component."""

    @property
    def encoder(self) -> int:
        """Parameters of the embedding and the layers."""
        return self.embedding + self.layers

    @property
    def total(self) -> int:
        """Parameters of the whole model."""
        return self.encoder + self.pooler + self.outputs + self.split


def parameters(spec: ModelSpec) -> Parameters:
    """The parameters of a model of that spec."""
    return held({name: prod(tensor.shape) for name, tensor in spec.tensors().items()})


def held(sizes: Mapping[str, int]) -> Parameters:
    """The parameters of a model whose tensors have these sizes."""

    def part(*prefixes: str, within: str = "") -> int:
        return sum(n for name, n in sizes.items() if name.startswith(prefixes) and within in name)

    outputs = part("heads.", within=".out.")
    return Parameters(
        embedding=part("embedding."),
        layers=part("stack."),
        pooler=part("heads.") - outputs,
        outputs=outputs,
        split=part("projection.", "vector.", "late.", "cross_embedding."),
    )


def weights_in(name: str, size: int, dtype: str) -> int:
    """Weights that a tensor of so many elements holds: two in a byte of 4-bit codes, none in a scale."""
    if "scale" in name.rpartition(".")[2]:
        return 0
    return 2 * size if dtype == "uint8" else size
