"""A low-rank token table as a module."""

from torch import Tensor, nn

from decoupled.methods.factorise.part import Factorised
from decoupled.model.nn.table.base import build_rows, build_table
from decoupled.model.parts.embedding import EmbeddingSpec


@build_table.register(Factorised)
class FactorisedTable(nn.Module):
    """A narrow row per token, and one matrix to the full width."""

    def __init__(self, kind: Factorised, spec: EmbeddingSpec) -> None:
        super().__init__()
        self.table = build_rows(spec.vocab, kind.rank, spec.bits)
        self.widen = nn.Linear(kind.rank, spec.width, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.widen(self.table(ids))
