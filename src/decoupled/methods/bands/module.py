"""A banded token table as a module."""

from torch import Tensor, nn

from decoupled.methods.bands.part import Banded
from decoupled.model.nn.table.base import build_rows, build_table
from decoupled.model.parts.embedding import EmbeddingSpec


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
