"""A range of layers over their slots, computing no row that nobody reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from decoupled.model.nn.frame import ALL, FIRST, Frame, Rows, take
from decoupled.model.nn.layer import AttentionBlock, FeedForwardBlock, build_norm
from decoupled.model.parts.attention import RelativeSpec
from decoupled.model.spec import EncoderSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """What a layer needs beside its input."""

    number: int
    frame: Frame
    rows: Rows
    """Rows that are read after it."""
    query: int
    relative: Tensor | None


Run = Callable[[Turn, Tensor], Tensor]
Around = Callable[[Turn, Tensor, Run], Tensor]
"""Does something in place of a layer, or around it, which it runs by calling its third argument."""


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
        self._around: list[Around] = []

    @contextmanager
    def around(self, act: Around) -> Iterator[None]:
        """Within the block every layer runs through `act`: how training skips or replaces layers."""
        self._around.append(act)
        try:
            yield
        finally:
            self._around.remove(act)

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
            frozen = self.spec.layers[number].passage == "frozen" and query
            wanted = rows if number == last - 1 else ALL
            if frozen and wanted != FIRST:
                wanted = ALL
            turn = Turn(number=number, frame=frame, rows=wanted, query=query, relative=relative)
            x_BTD = self._run(turn, x_BTD)
            if observe is not None:
                observe(number, x_BTD)
        x_BTD = take(x_BTD, rows) if wanted == ALL else x_BTD
        return (
            self.norm(x_BTD) if self.norm is not None and last == len(self.spec.layers) else x_BTD
        )

    def _run(self, turn: Turn, x_BTD: Tensor, depth: int = 0) -> Tensor:
        if depth == len(self._around):
            return self.layer(turn, x_BTD)
        return self._around[depth](turn, x_BTD, lambda t, x: self._run(t, x, depth + 1))

    def layer(self, turn: Turn, x_BTD: Tensor) -> Tensor:
        """One layer as the spec describes it."""
        layer = self.spec.layers[turn.number]
        attention = self.attention[str(layer.attention_slot)]
        ffn = self.ffn[str(layer.ffn_slot)]
        frozen = layer.passage == "frozen" and turn.query and turn.rows != FIRST
        rows = (slice(0, turn.query),) if frozen else turn.rows
        y_BRD = attention(x_BTD, turn.frame, rows, layer, turn.relative)
        y_BRD = ffn(y_BRD, layer, self.spec.chunk)
        return torch.cat([y_BRD, x_BTD[:, turn.query :]], 1) if frozen else y_BRD
