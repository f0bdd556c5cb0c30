"""Complex word embeddings as a module."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.methods.complex.part import Complex
from decoupled.model.nn.table.base import build_rows, build_table
from decoupled.model.parts.embedding import EmbeddingSpec

BASE = 10_000.0


def frequencies(width: int) -> Tensor:
    """`[D/2]` initial frequencies ω_d = 10000^(-2⌊d/2⌋/D), as sinusoidal positions have them in pairs."""
    half = width // 2
    # Two neighbouring dimensions share a frequency.
    place = 2 * (torch.arange(half) // 2)
    return BASE ** (-place / half)


@build_table.register(Complex)
class ComplexTable(nn.Module):
    """Rows whose pairs of columns turn with the position."""

    def __init__(self, kind: Complex, spec: EmbeddingSpec) -> None:
        super().__init__()
        (band,) = kind.bands(spec.vocab, spec.width)
        self.kind = kind
        self.table = build_rows(band.ids, band.width, spec.bits)
        shape = kind.frequencies(spec.vocab, spec.width)[1]
        start = frequencies(spec.width)
        start = start.mean() if kind.share == "dimensions" else start
        # Frequencies of words lie with the table, so that renumbering tokens moves both.
        holder = self if kind.share == "words" else self.table
        holder.register_parameter("frequency", nn.Parameter(start.expand(shape).clone()))

    def forward(self, ids_BT: Tensor, position_BT: Tensor) -> Tensor:
        """`[B,T,D]` vectors of tokens, turned by their positions."""
        speed: Tensor
        if self.kind.share == "words":
            speed = self.get_parameter("frequency")
        else:
            speed = F.embedding(ids_BT, self.get_parameter("table.frequency"))
        # φ = ω·pos in fp32, since half precision would blur large positions.
        angle = position_BT[..., None].float() * speed.float()
        x, cos, sin = self.table(ids_BT), angle.cos(), angle.sin()
        # Without phases a row holds amplitudes alone: r cos φ and r sin φ.
        if not self.kind.phases:
            return torch.cat([x * cos, x * sin], -1)
        real, imaginary = x.chunk(2, -1)
        # (a + ib)·exp(iφ) = (a cos φ - b sin φ) + i(a sin φ + b cos φ).
        return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], -1)
