"""What a block needs beside its input, in one object."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from decoupled.model.nn.frame import Frame, Rows
from decoupled.model.parts.layer import LayerSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """Where a layer stands in a pass. Layers that share a slot may differ in what `layer` says."""

    number: int
    layer: LayerSpec
    frame: Frame
    rows: Rows
    """Rows that are read after it."""
    query: int = 0
    """How many rows, the first ones, are the query's."""
    relative: Tensor | None = None
    """The table of relative positions, where the encoder has one."""
    chunk: int = 0
    """Tokens that a feed-forward block takes at a time; 0 is all."""
