"""The registry of blocks, a module for each kind of part, and what a block needs beside its input."""

from dataclasses import dataclass, field
from functools import singledispatch

from torch import Tensor, nn

from decoupled.errors import SpecError
from decoupled.model import annex
from decoupled.model.nn.frame import Frame, Rows
from decoupled.model.parts.layer import Block, LayerSpec
from decoupled.model.parts.part import Part
from decoupled.model.spec import DropoutSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A text that is not among the rows: what the cross-attention of a decoder looks at."""

    states: Tensor
    """`[B,S,D]` states of its tokens."""
    real: Tensor
    """`[B,S]`, true for the tokens that are no padding."""
    keep: bool = False
    """Whether its keys and values are computed once for all passes; not while training."""
    kept: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """Where a layer stands in a pass. Layers that share a slot may differ in what `layer` says."""

    number: int
    layer: LayerSpec
    frame: Frame
    rows: Rows
    """The rows that are read after this layer, and so all that it needs to compute."""
    query: int = 0
    """The number of rows of the query, which are the first of the sequence."""
    relative: Tensor | None = None
    """The table of relative positions, where the encoder has one."""
    source: Source | None = None
    chunk: int = 0
    """The number of tokens that a feed-forward block takes at a time; 0 is all."""


@singledispatch
def build_block(part: Part, block: Block, *, width: int, dropout: DropoutSpec) -> nn.Module:
    """The module of a block, called with rows and a `Context`: what the file of its part registered here."""
    if annex.registers(build_block, part, "module"):
        return build_block(part, block, width=width, dropout=dropout)
    raise SpecError(f"{part.kind} blocks have no torch module; register one in build_block")
