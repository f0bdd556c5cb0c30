"""Narrow token tables under a unit of group linear layers."""

from torch import Tensor, nn

from decoupled.methods.define.part import GroupTable
from decoupled.methods.group_modules import GroupStack
from decoupled.model.nn.table.base import build_rows, build_table
from decoupled.model.parts.embedding import EmbeddingSpec


@build_table.register(GroupTable)
class GroupedTable(nn.Module):
    """A narrow row per token, and the unit that widens it."""

    def __init__(self, kind: GroupTable, spec: EmbeddingSpec) -> None:
        super().__init__()
        self.table = build_rows(spec.vocab, kind.rank, spec.bits)
        self.unit = GroupStack(kind.unit(spec.width))

    def forward(self, ids: Tensor) -> Tensor:
        return self.unit(self.table(ids))
