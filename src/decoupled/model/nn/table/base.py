"""Token tables, a module per kind."""

from __future__ import annotations

from functools import singledispatch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.errors import SpecError
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.table import Banded, Factorised, Table, WholeTable


@singledispatch
def build_table(kind: Table, spec: EmbeddingSpec) -> nn.Module:
    """The module of a kind of token table: what was registered here for it."""
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


@build_table.register(Factorised)
class FactorisedTable(nn.Module):
    """A narrow row per token, and one matrix to the full width."""

    def __init__(self, kind: Factorised, spec: EmbeddingSpec) -> None:
        super().__init__()
        self.table = build_rows(spec.vocab, kind.rank, spec.bits)
        self.widen = nn.Linear(kind.rank, spec.width, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.widen(self.table(ids))


@build_table.register(Banded)
class BandedTable(nn.Module):
    """Bands of ids, each with rows of its own width and its own matrix to the full one."""

    def __init__(self, kind: Banded, spec: EmbeddingSpec) -> None:
        super().__init__()
        self.sizes = kind.sizes
        self.tables = nn.ModuleList(
            build_rows(rows, narrow, spec.bits)
            for rows, narrow in zip(kind.sizes, kind.widths, strict=True)
        )
        self.widen = nn.ModuleList(
            nn.Linear(narrow, spec.width, bias=False) for narrow in kind.widths
        )

    def forward(self, ids: Tensor) -> Tensor:
        first, total = 0, None
        for size, table, widen in zip(self.sizes, self.tables, self.widen, strict=True):
            # Without a data-dependent shape: ids of other bands read some row, which counts for nothing.
            inside = (ids >= first) & (ids < first + size)
            rows = widen(table((ids - first).clamp(0, size - 1))) * inside[..., None]
            total = rows if total is None else total + rows
            first += size
        assert total is not None
        return total
