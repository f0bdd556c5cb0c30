"""Rank, read and retrieve with one model: the losses that make a retriever, a reranker and a reader at once.

A group is a query with a passage that answers it and some that a search confused it with. On every pair the
span head learns the answer, or no answer for the wrong passages, so that its scores compare across passages;
the rank head learns which passage is the query's; the vector learns to be that of a good retriever, and late
interaction to say what the rank head says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.head import HeadKind, HeadSpec
from decoupled.train import losses
from decoupled.train.data.batches import Batch, repeated
from decoupled.train.data.groups import PAIR
from decoupled.train.data.rounds import ReaderBatch
from decoupled.train.data.tasks import Task
from decoupled.train.forward import Pass, forward_pair
from decoupled.train.objectives.base import Objective
from decoupled.train.packed import packable, pays

SHARPNESS = 20.0
"""Inverse temperature of the similarity of unit vectors."""
MINOR = 0.35
"""Weight of ranking in a batch that is made to be read, and of reading in one that is made to be ranked."""
WITHOUT = 0.3
"""Weight of finding no answer in a group whose own passage is left out."""
NEIGHBOURS = 0.2
"""Weight of the similarities of a batch beside the vectors themselves."""
Parts = dict[str, tuple[float, Tensor]]
"""Weight and value of each loss."""


@dataclass(frozen=True, kw_only=True)
class ReaderOutputs:
    """Everything that one pass over a batch of groups yields."""

    span: Tensor | None
    """`[B,1+P,2]`; None of a model without that head."""
    rank: Tensor
    """`[G,C]`, the query's own passage first."""
    hidden: tuple[Tensor, ...]
    moved: tuple[Tensor | None, ...]
    """As in `PairOutputs`."""
    vectors: tuple[Tensor, Tensor] | None
    """Unit vectors of the queries `[G,V]` and of the passages `[B,V]`, where they were asked for."""
    states: tuple[tuple[Tensor, Tensor, Tensor], ...]
    late: Tensor | None = None
    """`[G,C]` scores of late interaction."""
    exits: tuple[Tensor, ...] = ()
    """`[G,C]` each."""


def read_groups(
    net: PairEncoder, batch: Batch, how: Pass = Pass(), *, vectors: bool = True
) -> ReaderOutputs:
    """The heads that rank and read, the vectors and late interaction of a batch."""
    ranks = net.spec.reads("rank")
    reads: list[HeadKind] = [head.kind for head in net.spec.heads if head.kind == "span"]
    out = forward_pair(net, batch, *reads, ranks.kind, how=how)
    pooled = [net.pool(side.before, side.real) for side in out.sides] if vectors else []
    late = None
    if net.late is not None:
        given = [repeated(x, s.repeat) for s in out.sides for x in (s.codes, s.real)]
        late = net.late.score(*given).view(-1, batch.per_group)
    return ReaderOutputs(
        span=out.by_head.get("span"),
        rank=_odds(out.by_head[ranks.kind], ranks).view(-1, batch.per_group),
        hidden=out.hidden,
        moved=out.moved,
        vectors=(pooled[0], pooled[1]) if pooled else None,
        states=out.states,
        late=late,
        exits=tuple(logits.view(-1, batch.per_group) for logits in out.exits),
    )


def _odds(logits_BL: Tensor, head: HeadSpec) -> Tensor:
    """`[B]` what passages are ranked by: the one value, or how far its `rank_label` is above the other."""
    if head.kind == "rank":
        return logits_BL[:, 0]
    return logits_BL @ logits_BL.new_tensor(head.signs)


class Reader(Objective):
    """The weighted sum of the losses of one batch, and its parts by name.

    A teacher is needed for hidden states alone; its logits come with the batch.
    """

    @classmethod
    def heads(cls, task: Task) -> tuple[HeadKind, ...]:
        """Both at once."""
        return ("span", "rank")

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and each loss before its weight, detached."""
        batch = cast(ReaderBatch, batch)
        weights = self.recipe.reader
        nets = [net for net in (self.student, self.teacher) if net is not None]
        how = Pass(
            bits=self.recipe.squeeze.bits,
            hidden=bool(weights.lrs and self.teacher),
            packed=self.packs(batch, *nets),
            exits=bool(weights.exits),
        )
        near = bool(weights.vector or (weights.vector_kd and batch.aims is not None))
        outputs = read_groups(self.student, batch, how, vectors=near)
        parts: Parts = {}
        if self.teacher is not None and weights.lrs:
            with torch.no_grad():
                how = Pass(hidden=True, packed=how.packed, sides=False)
                taught = forward_pair(self.teacher.eval(), batch, "rank", how=how)
            batch = self.heard(batch, taught.by_head["rank"][:, 0])
            parts["lrs"] = weights.lrs, losses.lrs(outputs.hidden, taught.hidden, outputs.moved)
        parts |= self._rank(batch, outputs)
        if outputs.span is not None:
            parts |= self._read(batch, outputs.span)
        if outputs.vectors is not None and batch.aims is not None and weights.vector_kd:
            parts["vector_kd"] = weights.vector_kd, vector_distance(outputs.vectors, batch.aims)
        if outputs.vectors is not None and weights.vector:
            parts["vector"] = weights.vector, _find_own(batch, outputs.vectors)
        if self.student.spec.projection is not None and weights.reconstruction:
            parts["reconstruction"] = weights.reconstruction, losses.projection_loss(outputs.states)
        if outputs.exits:
            parts["exits"] = weights.exits, exit_loss(batch, outputs, self.recipe.temperature)
        total = torch.stack([weight * value for weight, value in parts.values()]).sum()
        return total, {name: value.detach() for name, (_, value) in parts.items()}

    def heard(self, batch: ReaderBatch, rank_B: Tensor) -> ReaderBatch:
        """The batch, where the teacher whose layers are compared has said how it ranks it."""
        return batch

    def packs(self, batch: Batch, *nets: PairEncoder) -> bool:
        """Does a batch run without padding? Not in a graph, which would be of its length alone."""
        wanted = pays(batch.query_ids) and not self.recipe.watch.graphs
        return wanted and all(map(packable, nets))

    def steady(self, batch: Batch) -> bool:
        """Every step is, where the rank head has one value: others weigh theirs by numbers of the host."""
        return self.student.spec.reads("rank").kind == "rank" and not self.packs(batch)

    def _read(self, batch: ReaderBatch, span: Tensor) -> Parts:
        weights, share = self.recipe.reader, 1.0 if batch.per_group == PAIR else MINOR
        parts: Parts = {}
        if weights.span:
            parts["span"] = share * weights.span, self._span(batch, span)
        if weights.no_answer:
            parts["no_answer"] = weights.no_answer, self._no_answer(batch, span)
        if weights.span_kd and batch.span is not None:
            real = batch.span_real[:, None].expand(-1, 2, -1)
            ours, theirs = span.transpose(1, 2), batch.span.transpose(1, 2)
            value = losses.kd(ours, theirs, self.recipe.temperature, real)
            # Start and end are two choices.
            parts["span_kd"] = weights.span_kd, 2 * value
        return parts

    def _span(self, batch: ReaderBatch, span: Tensor) -> Tensor:
        """The answer in the query's own passage, and no answer in the others, at half its weight."""
        each = batch.per_group

        def part(rows: slice) -> Tensor:
            logits, label, real = (
                x.view(-1, each, *x.shape[1:])[:, rows].flatten(0, 1)
                for x in (span, batch.label, batch.span_real)
            )
            return losses.span_loss(logits, label, real, self.recipe.span)

        return part(slice(0, 1)) + 0.5 * part(slice(1, None))

    def _no_answer(self, batch: ReaderBatch, span: Tensor) -> Tensor:
        """All spans together against no answer: in each passage, in the group, and without its own."""
        text, each = self.student.spec.text, batch.per_group
        special = len(text.passage_prefix), len(text.passage_suffix)
        total = losses.all_spans(span, batch.real[1], *special).view(-1, each)
        known = (batch.label[:, 0] != losses.UNLABELLED).view(-1, each)
        rows, label = torch.arange(len(span), device=span.device), batch.label.clamp(min=0).long()
        gold = span[rows, label[:, 0], 0] + span[rows, label[:, 1], 1] - span[:, 0].sum(-1)
        gold = torch.where(batch.label[:, 0] > 0, gold.float(), 0.0).view(-1, each)
        alone = F.softplus(total) - gold
        own, asked = known[:, 0], known.all(1)
        one = _mean(alone[:, 0], own) + 0.5 * _mean(alone[:, 1:], known[:, 1:])
        many = _mean(F.softplus(total.logsumexp(1)) - gold[:, 0], asked)
        return one + many + WITHOUT * _mean(F.softplus(total[:, 1:].logsumexp(1)), asked)

    def _rank(self, batch: ReaderBatch, outputs: ReaderOutputs) -> Parts:
        weights, share = self.recipe.reader, MINOR if batch.per_group == PAIR else 1.0
        score, labelled = outputs.rank.float(), batch.soft < 0.5
        target, known = rank_target(batch)
        parts: Parts = {}
        if weights.rank:
            value = _mean(-(target * score.log_softmax(1)).sum(1), known)
            parts["rank"] = share * weights.rank, value
        if weights.certainty:
            right = batch.score.view_as(score)
            value = F.binary_cross_entropy_with_logits(score, right, reduction="none").mean(1)
            parts["certainty"] = share * weights.certainty, _mean(value, labelled)
        taught = None if batch.rank is None else batch.rank.view_as(score)
        if taught is not None and weights.rank_kd:
            heat = self.recipe.temperature
            yes_no = losses.kd(losses.binary(score), losses.binary(taught), heat, None)
            value = losses.kd(score, taught, heat, None) + 0.3 * yes_no
            parts["rank_kd"] = share * weights.rank_kd, value
        if taught is not None and weights.margin:
            parts["margin"] = share * weights.margin, losses.margin_mse(score, taught) / 2
        if outputs.late is not None and weights.late:
            own = _mean(-outputs.late.float().log_softmax(1)[:, 0], labelled)
            order = taught if taught is not None else target.clamp(min=1e-6).log()
            parts["late"] = (
                share * weights.late,
                losses.kd(outputs.late, order, 1.0, None) + 0.5 * own,
            )
        return parts


def exit_loss(batch: ReaderBatch, outputs: ReaderOutputs, temperature: float) -> Tensor:
    """Every exit against what the last layer says, and as much against the teacher where there is one."""
    taught = None if batch.rank is None else batch.rank.view_as(outputs.rank)
    aims = [aim for aim in (outputs.rank.detach(), taught) if aim is not None]
    found = [
        losses.kd(score.float(), aim.float(), temperature, None)
        + 0.3
        * losses.kd(losses.binary(score.float()), losses.binary(aim.float()), temperature, None)
        for score in outputs.exits
        for aim in aims
    ]
    return torch.stack(found).mean()


def rank_target(batch: ReaderBatch) -> tuple[Tensor, Tensor]:
    """`[G,C]` shares of the passages of each query, and `[G]` where there is one.

    The query's own passage as far as it is labelled, and for the rest what a retriever finds near to it.
    """
    own = batch.score.view(-1, batch.per_group).float()
    if batch.aims is None:
        return own, batch.soft < 1
    queries, passages = batch.aims
    near = torch.einsum("gv,gcv->gc", queries, passages.view(*own.shape, -1))
    soft = batch.soft[:, None]
    return (1 - soft) * own + soft * (SHARPNESS * near).softmax(1), batch.soft >= 0


def vector_distance(ours: tuple[Tensor, Tensor], aims: tuple[Tensor, Tensor]) -> Tensor:
    """Unit vectors of queries and passages against those of a retriever, and the similarities between them.

    Where ours are narrower, its first values are the aim; where they are wider, the similarities alone.
    """
    queries, passages = (x.float() for x in ours)
    target = SHARPNESS * aims[0] @ aims[1].T
    value = losses.kd(SHARPNESS * queries @ passages.T, target, 1.0, None)
    if queries.shape[1] > aims[0].shape[1]:
        return value
    apart = [
        1 - (x * F.normalize(aim[:, : x.shape[1]], dim=-1)).sum(1).mean()
        for x, aim in zip((queries, passages), aims, strict=True)
    ]
    return apart[0] + apart[1] + NEIGHBOURS * value


def _find_own(batch: ReaderBatch, vectors: tuple[Tensor, Tensor]) -> Tensor:
    """Each query's own passage among all of the batch."""
    queries, passages = vectors
    scores = SHARPNESS * queries.float() @ passages.float().T
    own = torch.arange(len(queries), device=scores.device) * batch.per_group
    scores = scores.masked_fill(_repeated(batch, own), -torch.inf)
    return _mean(F.cross_entropy(scores, own, reduction="none"), batch.soft < 1)


def _repeated(batch: Batch, own_G: Tensor) -> Tensor:
    """`[G,B]`: the passages of other groups that are a query's own again, and so no wrong ones."""
    ids = batch.passage_ids
    same_GB = (ids[own_G][:, None] == ids).all(-1)
    return same_GB.scatter(1, own_G[:, None], False)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    return (values * counted).sum() / counted.sum().clamp(min=1)


OBJECTIVE = Reader
