"""Rank, read and retrieve with one model: the losses that make a retriever, a reranker and a reader at once.

A group is a question with its own passage and some that a search confused it with. On every pair the span
head learns the answer, or no answer for the wrong passages, so that its scores compare across passages; the
rank head learns which passage is the question's; and the vector learns to find it among all of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.head import HeadKind
from decoupled.train import losses
from decoupled.train.data.batches import Batch
from decoupled.train.data.tasks import Task
from decoupled.train.forward import Pass, forward_pair
from decoupled.train.objectives.base import Objective

SHARPNESS = 20.0
"""Inverse temperature of the similarity of unit vectors."""


@dataclass(frozen=True, kw_only=True)
class ReaderOutputs:
    """Everything that one pass over a batch of groups yields."""

    span: Tensor
    """`[B,1+P,2]`."""
    rank: Tensor
    """`[G,C]`, the question's own passage first."""
    hidden: tuple[Tensor, ...]
    moved: tuple[Tensor, ...]
    """As in `PairOutputs`."""
    vectors: tuple[Tensor, Tensor]
    """Unit vectors of the questions `[G,V]` and of the passages `[B,V]`."""
    states: tuple[tuple[Tensor, Tensor, Tensor], ...]


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Unit vectors of a good retriever, for the questions and the passages of the examples."""

    queries: Tensor
    passages: Tensor
    query_of: Tensor
    passage_of: Tensor

    def of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Those of a batch."""
        first = batch.rows[:: batch.per_group]
        return self.queries[self.query_of[first]], self.passages[self.passage_of[batch.rows]]


def read_groups(net: PairEncoder, batch: Batch, how: Pass = Pass()) -> ReaderOutputs:
    """Both heads and the vectors of a batch, with the outputs of the cross layers."""
    out = forward_pair(net, batch, "span", "rank", how=replace(how, hidden=True))
    queries, passages = (
        net.pool(side.before if side.projected else side.after, side.real) for side in out.sides
    )
    return ReaderOutputs(
        span=out.by_head["span"],
        rank=out.by_head["rank"].view(-1, batch.per_group),
        hidden=out.hidden,
        moved=out.moved,
        vectors=(queries, passages),
        states=out.states,
    )


class Reader(Objective):
    """The weighted sum of the losses of one batch, and its parts by name."""

    def __init__(self, *given: Any, neighbours: Neighbours | None = None, **options: Any) -> None:
        super().__init__(*given, **options)
        self._neighbours = neighbours

    @classmethod
    def heads(cls, task: Task) -> tuple[HeadKind, ...]:
        """Both at once."""
        return ("span", "rank")

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and each loss before its weight, detached."""
        outputs = read_groups(self.student, batch, Pass(bits=self.recipe.squeeze.bits))
        parts = self._own(batch, outputs) | self._imitated(batch, outputs)
        if self.student.spec.projection is not None and self.recipe.reader.reconstruction:
            value = losses.projection_loss(outputs.states)
            parts["reconstruction"] = (self.recipe.reader.reconstruction, value)
        total = torch.stack([weight * value for weight, value in parts.values()]).sum()
        return total, {name: value.detach() for name, (_, value) in parts.items()}

    def _own(self, batch: Batch, outputs: ReaderOutputs) -> dict[str, tuple[float, Tensor]]:
        weights, relevance = self.recipe.reader, batch.score.view(-1, batch.per_group)
        found: dict[str, tuple[float, Tensor]] = {}
        if weights.span:
            found["span"] = weights.span, self._span(batch, outputs)
        if weights.rank:
            found["rank"] = weights.rank, losses.rank_listwise(outputs.rank, relevance)
        if weights.certainty:
            value = losses.rank_bce(outputs.rank.flatten(), batch.score)
            found["certainty"] = weights.certainty, value
        if weights.vector:
            queries, passages = outputs.vectors
            scores = SHARPNESS * queries.float() @ passages.float().T
            own = torch.arange(len(queries), device=scores.device) * batch.per_group
            scores = scores.masked_fill(_repeated(batch, own), -torch.inf)
            found["vector"] = weights.vector, F.cross_entropy(scores, own)
        return found

    def _span(self, batch: Batch, outputs: ReaderOutputs) -> Tensor:
        """The answer in the question's own passage, and no answer in the others, at half its weight."""
        each = batch.per_group

        def part(rows: slice) -> Tensor:
            logits, label, real = (
                x.view(-1, each, *x.shape[1:])[:, rows].flatten(0, 1)
                for x in (outputs.span, batch.label, batch.span_real)
            )
            return losses.span_loss(logits, label, real, self.recipe.span)

        return part(slice(0, 1)) + 0.5 * part(slice(1, None))

    def _imitated(self, batch: Batch, outputs: ReaderOutputs) -> dict[str, tuple[float, Tensor]]:
        weights, teacher, neighbours = self.recipe.reader, self.teacher, self._neighbours
        found: dict[str, tuple[float, Tensor]] = {}
        if neighbours is not None and weights.vector_kd:
            queries, passages = neighbours.of(batch)
            ours, theirs = outputs.vectors
            target = SHARPNESS * queries.float() @ passages.float().T
            value = losses.kd(SHARPNESS * ours.float() @ theirs.float().T, target, 1.0, None)
            found["vector_kd"] = weights.vector_kd, value
        if teacher is None:
            return found
        with torch.no_grad():
            taught = read_groups(teacher.eval(), batch)
        heat = self.recipe.temperature
        if weights.span_kd:
            real = batch.span_real[:, None].expand(-1, 2, -1)
            ours, theirs = outputs.span.transpose(1, 2), taught.span.transpose(1, 2)
            found["span_kd"] = weights.span_kd, losses.kd(ours, theirs, heat, real)
        if weights.rank_kd:
            ours, theirs = (losses.binary(x.rank.flatten()) for x in (outputs, taught))
            yes_no = losses.kd(ours, theirs, heat, None)
            within = losses.kd(outputs.rank, taught.rank, heat, None)
            found["rank_kd"] = weights.rank_kd, within + yes_no
        if weights.lrs:
            value = losses.lrs(outputs.hidden, taught.hidden, outputs.moved)
            found["lrs"] = weights.lrs, value
        return found


def _repeated(batch: Batch, own_G: Tensor) -> Tensor:
    """`[G,B]`: the passages of other groups that are a question's own again, and so no wrong ones."""
    ids = batch.passage_ids
    same_GB = (ids[own_G][:, None] == ids).all(-1)
    return same_GB.scatter(1, own_G[:, None], False)


OBJECTIVE = Reader
