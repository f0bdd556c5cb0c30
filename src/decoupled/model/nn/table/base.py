"""Token tables, a module per kind."""

from functools import singledispatch

from torch import nn

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
    """A table of vectors, plain or quantised to int8."""
    if bits is None:
        return nn.Embedding(rows, width)
    build: type[nn.Module] = annex.load("quantise.module").QuantisedRows
    return build(rows, width)
