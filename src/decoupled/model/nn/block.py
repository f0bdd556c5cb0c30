"""The registry of blocks: a module for each kind of part."""

from __future__ import annotations

from functools import singledispatch

from torch import nn

from decoupled.errors import SpecError
from decoupled.model.parts.layer import Block
from decoupled.model.parts.part import Part
from decoupled.model.spec import DropoutSpec


@singledispatch
def build_block(part: Part, block: Block, *, width: int, dropout: DropoutSpec) -> nn.Module:
    """The module of a block, called with rows and a `Context`: what the file of its part registered here."""
    raise SpecError(f"{part.kind} blocks have no torch module; register one in build_block")
