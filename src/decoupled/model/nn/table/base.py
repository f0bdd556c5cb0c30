"""Token tables, a module per kind."""

from __future__ import annotations

from functools import singledispatch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.errors import SpecError
from decoupled.model import annex
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.table import Table, WholeTable


@singledispatch
def build_table(kind: Table, spec: EmbeddingSpec) -> nn.Module:
    """The module of a kind of token table: what was registered here for it."""
    if annex.registers(build_table, kind, "module"):
        return build_table(kind, spec)
    raise SpecError(f"a {kind.kind} token table has no torch module; register one in build_table")


@build_table.register
def _(kind: WholeTable, spec: EmbeddingSpec) -> nn.Module:
    return build_rows(spec.vocab, spec.width, spec.bits)


def build_rows(rows: int, width: int, bits: int | None) -> nn.Module:
    """Rows of vectors, plain or quantised."""
    return nn.Embedding(rows, width) if bits is None else QuantisedRows(rows, width)


class QuantisedRows(nn.Module):
    """Rows of vectors as int8 codes with a scale each."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.codes: Tensor
        self.scale_V1: Tensor
        self.register_buffer("codes", torch.zeros(rows, width, dtype=torch.int8))
        self.register_buffer("scale_V1", torch.ones(rows, 1))

    def forward(self, ids: Tensor) -> Tensor:
        scale = F.embedding(ids, self.scale_V1)
        return self.codes[ids].to(scale.dtype) * scale
