"""Parameters of a model, from its spec or its tensors, by the part that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from decoupled.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """How many numbers each part holds. Layers that share a slot count once."""

    embedding: int
    layers: int
    """Layers, the norm after the last, and the table of relative positions."""
    pooler: int
    """Hidden layers of the heads."""
    outputs: int
    """Output layers of the heads."""
    split: int
    """What a split adds: projection, vector, tables at the start of the cross component."""

    @property
    def encoder(self) -> int:
        """Embedding and layers."""
        return self.embedding + self.layers

    @property
    def total(self) -> int:
        """All of them."""
        return self.encoder + self.pooler + self.outputs + self.split


def parameters(spec: ModelSpec) -> Parameters:
    """The parameters of a model of that spec."""
    return held({name: prod(tensor.shape) for name, tensor in spec.tensors().items()})


def held(sizes: Mapping[str, int]) -> Parameters:
    """The parameters of a model whose tensors have these sizes."""

    def part(*prefixes: str) -> int:
        return sum(size for name, size in sizes.items() if name.startswith(prefixes))

    outputs = sum(n for name, n in sizes.items() if name.startswith("heads.") and ".out." in name)
    return Parameters(
        embedding=part("embedding."),
        layers=part("stack."),
        pooler=part("heads.") - outputs,
        outputs=outputs,
        split=part("projection.", "vector.", "cross_embedding."),
    )


def weights_in(name: str, size: int, dtype: str) -> int:
    """Weights that a tensor of so many elements holds: two in a byte of 4-bit codes, none in a scale."""
    if "scale" in name.rpartition(".")[2]:
        return 0
    return 2 * size if dtype == "uint8" else size
