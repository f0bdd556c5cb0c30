"""A range of layers over their slots, computing no row that nobody reads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from decoupled.nn.frame import ALL, FIRST, Frame, Rows, take
from decoupled.nn.layer import AttentionBlock, FeedForwardBlock, build_norm
from decoupled.spec import EncoderSpec, RelativeSpec


class RelativeTable(nn.Module):
    """DeBERTa's relative positions, normalised once per forward pass."""

    def __init__(self, spec: RelativeSpec, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(spec.rows, width)
        self.norm = build_norm(spec.norm, width) if spec.norm else nn.Identity()

    def forward(self) -> Tensor:
        return self.norm(self.table.weight)


class Stack(nn.Module):
    """Layers `first..last-1` of the encoder. Slots are built once, however many layers use them."""

    def __init__(self, spec: EncoderSpec, *, first: int, last: int) -> None:
        super().__init__()
        self.spec = spec
        self.first, self.last = first, last
        self.attention = nn.ModuleDict()
        self.ffn = nn.ModuleDict()
        for layer in spec.layers[first:last]:
            slots = (self.attention, str(layer.attention_slot)), (self.ffn, str(layer.ffn_slot))
            for (table, slot), block in zip(slots, (AttentionBlock, FeedForwardBlock), strict=True):
                if slot not in table:
                    table[slot] = block(layer, width=spec.width, dropout=spec.dropout)
        relative = spec.relative if first < last else None
        self.relative = RelativeTable(relative, spec.width) if relative else None
        final = spec.final_norm if last == len(spec.layers) else None
        self.norm = build_norm(final, spec.width) if final else None

    def forward(
        self,
        x_BTD: Tensor,
        frame: Frame,
        *,
        rows: Rows = ALL,
        first: int | None = None,
        last: int | None = None,
        query: int = 0,
        observe: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """Run layers `first..last-1` (all by default) and return the given rows of the last one.

        Rows that are not asked for are left out of the last layer, where nothing reads them. A layer with
        frozen passages moves the first `query` rows only. `observe(layer, x)` sees each layer's output.
        """
        first = self.first if first is None else first
        last = self.last if last is None else last
        relative = self.relative() if self.relative is not None else None
        wanted = ALL
        for number in range(first, last):
            layer = self.spec.layers[number]
            attention = self.attention[str(layer.attention_slot)]
            ffn = self.ffn[str(layer.ffn_slot)]
            wanted = rows if number == last - 1 else ALL
            if layer.passage == "frozen" and query and wanted != FIRST:
                wanted = ALL
                moved = ffn(attention(x_BTD, frame, (slice(0, query),), layer, relative), layer)
                x_BTD = torch.cat([moved, x_BTD[:, query:]], 1)
            else:
                x_BTD = ffn(attention(x_BTD, frame, wanted, layer, relative), layer)
            if observe is not None:
                observe(number, x_BTD)
        x_BTD = take(x_BTD, rows) if wanted == ALL else x_BTD
        return (
            self.norm(x_BTD) if self.norm is not None and last == len(self.spec.layers) else x_BTD
        )
