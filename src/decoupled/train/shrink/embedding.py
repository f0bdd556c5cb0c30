"""Narrower token tables: one factorisation for all tokens (ALBERT), or less width for rarer ones.

Positions and types stay as wide as they are and are added after the map, so that a full rank changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model.model import Model
from decoupled.model.parts.table import TOKENS, Banded, Factorised, Table
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared
from decoupled.train.shrink.base import Method, Weights, check_count
from decoupled.train.shrink.linear import need_floats
from decoupled.train.shrink.vocabulary import KeepTokens, by_frequency, frequencies


@dataclass(frozen=True, kw_only=True)
class FactoriseEmbedding(Method):
    """The token table as a narrow one and a map, from its singular values."""

    name: ClassVar[str] = "factorise-embedding"

    rank: int = 128

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """A table of that rank."""
        need_floats(spec, self.name, tables=True)
        return _with_table(spec, Factorised(rank=self.rank), self.name)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """The best table of that rank: its squared error is the sum of the singular values left out."""
        return _banded(weights, after)


@dataclass(frozen=True, kw_only=True)
class BandEmbedding(Method):
    """Frequency-dependent width (Baevski and Auli, 2019): band i of the vocabulary is width/factor^i wide."""

    name: ClassVar[str] = "band-embedding"

    shares: tuple[float, ...] = (0.1, 0.3)
    """Shares of the vocabulary in the first bands; the rest is the last one."""
    factor: int = 4

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """Count the tokens of the data, and order the vocabulary by them."""
        if not 0 < sum(self.shares) < 1 or min(self.shares) <= 0:
            raise SpecError(
                f"shares={self.shares}; choose shares above 0 that add up to less than 1"
            )
        if self.factor < 2:
            raise SpecError(f"factor={self.factor}; choose 2 or more")
        spec, examples = model.spec.encoder.embedding, self.needed(sample).examples(model)
        sizes = [max(1, round(share * spec.vocab)) for share in self.shares]
        sizes.append(spec.vocab - sum(sizes))
        widths = tuple(max(1, spec.width // self.factor**i) for i in range(len(sizes)))
        order = by_frequency(model, frequencies(examples, spec.vocab))
        return _Band(order=KeepTokens(order=order), sizes=tuple(sizes), widths=widths)


@dataclass(frozen=True, kw_only=True)
class _Band(Method):
    """Bands over a given order of the vocabulary."""

    order: KeepTokens
    sizes: tuple[int, ...]
    widths: tuple[int, ...]

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        need_floats(spec, BandEmbedding.name, tables=True)
        table = Banded(sizes=self.sizes, widths=self.widths)
        return _with_table(self.order.rewrite(spec), table, BandEmbedding.name)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        return _banded(self.order.transfer(weights, before, self.order.rewrite(before)), after)

    def retokenise(self, json: str) -> str:
        return self.order.retokenise(json)

    def summary(self) -> dict[str, object]:
        return {"method": BandEmbedding.name, "sizes": self.sizes, "widths": self.widths}


def _banded(weights: Weights, after: ModelSpec) -> Weights:
    """The tensors of the new table, each band the closest of its rank to the rows that there were."""
    found, spec = dict(weights), after.encoder.embedding
    bands = spec.tokens.bands(spec.vocab, spec.width)
    parts = torch.split(found.pop(f"{TOKENS}.weight"), [band.ids for band in bands])
    for band, rows in zip(bands, parts, strict=True):
        narrow, widen = truncated(rows, band.width)
        found |= {f"{band.rows}.weight": narrow, f"{band.widen}.weight": widen}
    return found


def _with_table(spec: ModelSpec, table: Table, method: str) -> ModelSpec:
    embedding = spec.encoder.embedding
    if embedding.table is not None:
        raise SpecError(
            f"{method}: the token table is {embedding.table.kind} already; apply one of the two methods"
        )
    rank = max(band.width for band in table.bands(embedding.vocab, embedding.width))
    said = f"{method}: rank {rank}, but the table is {embedding.width} wide"
    check_count(rank, embedding.width, said)
    changed = replace(embedding, table=table)
    return replace(spec, encoder=replace(spec.encoder, embedding=changed))


def truncated(matrix_MN: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """`[M,rank]` and `[N,rank]` with the product of the first by the second transposed closest to a matrix.

    Fewer rows than `rank` leave columns of zeros.
    """
    whole = matrix_MN.double()
    rows, columns = whole.shape
    count = min(rank, rows, columns)
    # Singular vectors of the small side: seconds instead of minutes for a whole vocabulary.
    small = whole.T @ whole if columns <= rows else whole @ whole.T
    axes = torch.linalg.eigh(small)[1].flip(1)[:, :count]
    if columns <= rows:
        left, right = whole @ axes, axes
    else:
        right = whole.T @ axes
        size = right.norm(dim=0).clamp(min=1e-30)
        left, right = axes * size, right / size
    left, right = (F.pad(one.to(matrix_MN.dtype), (0, rank - count)) for one in (left, right))
    return left, right
