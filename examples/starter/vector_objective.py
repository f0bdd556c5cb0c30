"""The last phase of a reader: the first-stage vector alone, on states that stand still.

It is to be the vector of a retriever, a sentence encoder, so that a search by it finds what that finds.
"""

from __future__ import annotations

from typing import cast

import torch
from rounds import ReaderBatch
from torch import Tensor

from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.spec import VECTOR
from decoupled.train.data.batches import Batch, Feed
from decoupled.train.objectives.adapt import vector_kd
from decoupled.train.objectives.base import Objective

SAMPLE = 32
"""Batches that the vector is first fitted to."""


class Vector(Objective):
    """The vector against the retriever's; nothing else moves."""

    def trains(self, name: str) -> bool:
        """The vector's own layers and its map."""
        return name.startswith(VECTOR)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and the same under its name."""
        batch = cast(ReaderBatch, batch)
        assert batch.aims is not None, "a vector is taught by a retriever"
        with torch.no_grad():
            states = both_sides(self.student, batch)
        value = vector_kd(
            (self.student.pool(*states[0]), self.student.pool(*states[1])), batch.aims
        )
        return value, {"vector_kd": value.detach()}


def both_sides(
    net: PairEncoder, batch: Batch
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """States before the projection of queries and passages, and which are real."""
    return (
        (net.hidden("query", batch.query_ids, batch.query_real, padded=True), batch.query_real),
        (
            net.hidden("passage", batch.passage_ids, batch.passage_real, padded=True),
            batch.passage_real,
        ),
    )


def principal_axes(vectors: Tensor) -> Tensor:
    """The space of unit vectors turned so that its first values say most: any prefix is a good vector."""
    rows = vectors[:: max(1, len(vectors) // 50_000)].double()
    _, axes = torch.linalg.eigh(rows.T @ rows / len(rows))
    return axes.flip(1).float()


def nearest_turn(vectors: Tensor, to: Tensor) -> Tensor:
    """The turn whose first values lay vectors best over narrower ones of the same texts (Procrustes)."""
    width = to.shape[1]
    if width > vectors.shape[1]:
        return torch.eye(vectors.shape[1], device=vectors.device)
    u, _, v = torch.linalg.svd(vectors.double().T @ to.double())
    return torch.cat([u[:, :width] @ v, u[:, width:]], 1).float()


@torch.no_grad()
def start_vector(net: PairEncoder, feed: Feed, seed: int) -> None:
    """Set the vector's map to the least squares from mean states to the aims of some batches."""
    assert net.vector is not None
    means, aims = [], []
    net.eval()
    for batch in feed.walk(feed.epoch(seed, 0, size=1, tokens=None)[:SAMPLE]):
        batch = cast(ReaderBatch, batch)
        assert batch.aims is not None
        for states, aim in zip(both_sides(net, batch), batch.aims, strict=True):
            means.append(net.mean(*states).double())
            aims.append(aim[:, : net.spec.vector_width].double())
    x, y = torch.cat(means), torch.cat(aims)
    ridge = 0.01 * len(x) * x.square().mean() * torch.eye(x.shape[1], device=x.device).double()
    net.vector.weight.copy_(torch.linalg.solve(x.T @ x + ridge, x.T @ y).T.float())
