"""Token tables of less width: what factorising and banding share."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.methods.method import Weights, check_count
from decoupled.model.parts.table import TOKENS, Table
from decoupled.model.spec import ModelSpec


def truncated(matrix_MN: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """`[M,rank]` and `[N,rank]` with the product of the first by the second transposed closest to a matrix.

    Fewer rows than `rank` leave columns of zeros.
    """
    whole = matrix_MN.double()
    rows, columns = whole.shape
    count = min(rank, rows, columns)
    # Eigenvectors of the smaller Gram matrix: seconds instead of minutes for a whole vocabulary.
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


def banded(weights: Weights, after: ModelSpec) -> Weights:
    """The tensors of the new table, each band the closest of its rank to the rows that there were."""
    moved, spec = dict(weights), after.encoder.embedding
    bands = spec.tokens.bands(spec.vocab, spec.width)
    parts = torch.split(moved.pop(f"{TOKENS}.weight"), [band.ids for band in bands])
    for band, rows in zip(bands, parts, strict=True):
        narrow, widen = truncated(rows, band.width)
        moved |= {f"{band.rows}.weight": narrow, f"{band.widen}.weight": widen}
    return moved


def with_table(spec: ModelSpec, table: Table, method: str) -> ModelSpec:
    """The spec with another token table, or an error where it has one already or is too narrow for it."""
    embedding = spec.encoder.embedding
    if embedding.table is not None:
        raise SpecError(
            f"{method}: the token table is {embedding.table.kind} already; apply one of the two methods"
        )
    rank = max(band.width for band in table.bands(embedding.vocab, embedding.width))
    problem = f"{method}: rank {rank}, but the table is {embedding.width} wide"
    check_count(rank, embedding.width, problem)
    changed = replace(embedding, table=table)
    return replace(spec, encoder=replace(spec.encoder, embedding=changed))
