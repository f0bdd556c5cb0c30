"""Token ids to vectors, and the tables that a cross component may add at its start."""

from dataclasses import dataclass, field
from typing import Literal

from decoupled.model.jsonable import LATER
from decoupled.model.parts.linear import WHOLE, Tensors, TensorSpec
from decoupled.model.parts.norm import NormSpec
from decoupled.model.parts.table import Table, WholeTable


@dataclass(frozen=True, kw_only=True)
class EmbeddingSpec:
    """Token, position and type tables, their norm, and a projection when they are narrower."""

    vocab: int
    width: int
    positions: int = 0
    """Rows of the learned position table; 0 when positions enter in the attention."""
    position_start: int = 0
    """Row of position 0 (RoBERTa starts after the padding row)."""
    types: int = 0
    norm: NormSpec | None = NormSpec()
    """None in decoders, whose layers begin with a norm."""
    project: Literal["none", "before_norm", "after_norm"] = "none"
    project_bias: bool = True
    table: Table | None = field(default=None, metadata=LATER)
    """How the token table is held; None is one row of `width` per token."""
    bits: Literal[8] | None = field(default=None, metadata=LATER)
    """8 holds the token table as int8 codes with a scale per row; None holds it as floats."""

    @property
    def tokens(self) -> Table:
        """The token table; a whole one where the spec names no other."""
        return self.table or WholeTable()

    def tensors(self, width: int) -> Tensors:
        """Its tensors, by name, in an encoder of that width."""
        tensors = self.tokens.tensors(self.vocab, self.width, self.bits)
        for name, rows in (("positions", self.positions), ("types", self.types)):
            if rows:
                tensors[f"embedding.{name}.weight"] = TensorSpec((rows, self.width))
        norm_width = width if self.project == "before_norm" else self.width
        tensors |= self.norm.tensors("embedding.norm", norm_width) if self.norm else {}
        if self.project != "none":
            tensors |= WHOLE.tensors("embedding.project", self.width, width, bias=self.project_bias)
        return tensors

    def macs(self, width: int) -> int:
        """Multiply-adds of one token: what widens narrow tables."""
        project = 0 if self.project == "none" else self.width * width
        return project + self.tokens.macs(self.vocab, self.width)


def cross_tensors(embedding: EmbeddingSpec, width: int, *, norm: bool) -> Tensors:
    """Position and segment tables at the start of a cross component, with a norm or without."""
    tensors = {
        "cross_embedding.positions.weight": TensorSpec((embedding.positions, width)),
        "cross_embedding.segments.weight": TensorSpec((2, width)),
    }
    return tensors | (NormSpec().tensors("cross_embedding.norm", width) if norm else {})
