"""Longer windows: a table of positions that is repeated."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from decoupled.errors import SpecError
from decoupled.methods.method import Method, Weights
from decoupled.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Lengthen(Method):
    """Windows of so many tokens; a table of positions is repeated as often as that needs."""

    name: ClassVar[str] = "lengthen"

    tokens: int = 4096

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Longer windows that overlap as much as before, and rows for their positions."""
        text, encoder, table = spec.text, spec.encoder, spec.encoder.embedding
        if self.tokens <= text.passage_tokens:
            raise SpecError(
                f"tokens={self.tokens}, and windows have {text.passage_tokens} already; choose more"
            )
        # Windows grow and their overlap stays, so the stride grows by the same number of tokens.
        stride = text.stride + self.tokens - text.passage_tokens
        text = replace(text, passage_tokens=self.tokens, stride=stride)
        longest = text.query_tokens + self.tokens
        rows = max(table.positions, table.position_start + longest) if table.positions else 0
        encoder = replace(
            encoder,
            embedding=replace(table, positions=rows),
            max_tokens=max(encoder.max_tokens, longest),
        )
        return replace(spec, encoder=encoder, text=text)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Row n of the longer tables is row n modulo the length of the old one."""
        old, moved = before.encoder.embedding, dict(weights)
        room, rows = old.positions - old.position_start, after.encoder.embedding.positions
        for name in ("embedding.positions.weight", "cross_embedding.positions.weight"):
            if name in moved:
                place = torch.arange(rows - old.position_start) % room + old.position_start
                start = moved[name][: old.position_start]
                moved[name] = torch.cat([start, moved[name][place.to(start.device)]])
        return moved
