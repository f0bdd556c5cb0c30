"""Token ids to vectors, and the tables that a cross component may add at its start (`cross_embed`)."""

import torch
from torch import Tensor, nn

from decoupled.model.nn.linear import build_norm
from decoupled.model.nn.table import build_table
from decoupled.model.parts.norm import NormSpec
from decoupled.model.spec import EncoderSpec


class Embedding(nn.Module):
    """Tokens, positions and types, summed, normalised, and widened where the tables are narrow."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        table = spec.embedding
        self.start = table.position_start
        self.project_first = table.project == "before_norm"
        self.tokens = build_table(table.tokens, table)
        self.placed = table.tokens.placed
        self.positions = nn.Embedding(table.positions, table.width) if table.positions else None
        self.types = nn.Embedding(table.types, table.width) if table.types else None
        # The norm stands behind a projection that comes first, and so has the encoder's width
        # there.
        width = spec.width if self.project_first else table.width
        self.norm = build_norm(table.norm, width) if table.norm else nn.Identity()
        self.project = (
            nn.Linear(table.width, spec.width, bias=table.project_bias)
            if table.project != "none"
            else None
        )
        self.dropout = nn.Dropout(spec.dropout.hidden)

    def forward(self, ids_BT: Tensor, position_BT: Tensor, type_BT: Tensor) -> Tensor:
        x = self.tokens(ids_BT, position_BT) if self.placed else self.tokens(ids_BT)
        if self.positions is not None:
            # RoBERTa's table starts after its padding row.
            x = x + self.positions(position_BT + self.start)
        if self.types is not None:
            x = x + self.types(type_BT)
        if self.project is not None and self.project_first:
            return self.dropout(self.norm(self.project(x)))
        x = self.dropout(self.norm(x))
        return x if self.project is None else self.project(x)


class CrossEmbedding(nn.Module):
    """New position and segment tables for the joined sequence: `x + P'[position] + S'[side]`."""

    def __init__(self, spec: EncoderSpec, *, norm: bool) -> None:
        super().__init__()
        self.positions = nn.Embedding(spec.embedding.positions, spec.width)
        self.segments = nn.Embedding(2, spec.width)
        self.start = spec.embedding.position_start
        self.norm = build_norm(NormSpec(), spec.width) if norm else None

    @torch.no_grad()
    def copy_from(self, embedding: Embedding, query_type: int, passage_type: int) -> None:
        """Start from the tables of the input embedding, through its projection where they are narrower."""

        def widen(rows: Tensor) -> Tensor:
            # Without the projection's bias, which the states that are added to carry already.
            return rows if embedding.project is None else rows @ embedding.project.weight.T

        if embedding.positions is not None:
            self.positions.weight.copy_(widen(embedding.positions.weight))
        # Families without token types tell the sides apart by nothing at first.
        self.segments.weight.zero_()
        if embedding.types is not None:
            types = embedding.types.weight[[query_type, passage_type]]
            self.segments.weight.copy_(widen(types))

    def forward(self, x_BTD: Tensor, position_BT: Tensor, side_BT: Tensor) -> Tensor:
        x_BTD = x_BTD + self.positions(position_BT + self.start) + self.segments(side_BT)
        return x_BTD if self.norm is None else self.norm(x_BTD)
