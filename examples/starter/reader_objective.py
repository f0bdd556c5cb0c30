"""Rank, read and retrieve with one model: the losses that make a retriever, a reranker and a reader at once.

A group is a query with a passage that answers it and some that a search confused it with. On every pair the
span head learns the answer, or no answer for the wrong passages, so that its scores compare across passages;
the rank head learns which passage is the query's; the vector learns to be that of a good retriever, and late
interaction to say what the rank head says.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from groups import PAIR
from reader_recipe import ReaderSettings
from rounds import ReaderBatch
from torch import Tensor

from decoupled.methods.exits.objective import exit_loss
from decoupled.model.parts.head import HeadKind
from decoupled.train import losses
from decoupled.train.data.batches import Batch
from decoupled.train.data.tasks import Task
from decoupled.train.loop.forward import Pass, forward_pair
from decoupled.train.objectives.adapt import (
    SHARPNESS,
    GroupOutputs,
    own_passage,
    rank_kd,
    read_groups,
    span_kd,
    vector_kd,
)
from decoupled.train.objectives.base import Objective

Parts = dict[str, tuple[float, Tensor]]
"""Weight and value of each loss, by name."""
MINOR = 0.35
"""Weight of ranking in a batch that is made to be read, and of reading in one that is made to be ranked."""
WITHOUT = 0.3
"""Weight of finding no answer in a group whose own passage is left out."""


class Reader(Objective):
    """The weighted sum of the losses of one batch, and its parts by name.

    A teacher is needed for hidden states alone; its logits come with the batch.
    """

    settings_kind = ReaderSettings

    @property
    def settings(self) -> ReaderSettings:
        """Those of its recipe."""
        return self.recipe.of(ReaderSettings)

    @classmethod
    def heads(cls, task: Task) -> tuple[HeadKind, ...]:
        """Both at once."""
        return ("span", "rank")

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and each loss before its weight, detached."""
        batch = cast(ReaderBatch, batch)
        weights = self.settings.weights
        how = Pass(
            bits=self.settings.projection.bits,
            hidden=bool(weights.lrs and self.teacher),
            exits=bool(weights.exits),
        )
        near = bool(weights.vector or (weights.vector_kd and batch.aims is not None))
        outputs = read_groups(self.student, batch, how, vectors=near)
        parts: Parts = {}
        if self.teacher is not None and weights.lrs:
            with torch.no_grad():
                how = Pass(hidden=True)
                said = forward_pair(self.teacher.eval(), batch, "rank", how=how)
            parts["lrs"] = weights.lrs, losses.lrs(outputs.hidden, said.hidden, outputs.moved)
        parts |= self._rank(batch, outputs)
        if outputs.span is not None:
            parts |= self._read(batch, outputs.span)
        if outputs.vectors is not None and batch.aims is not None and weights.vector_kd:
            parts["vector_kd"] = weights.vector_kd, vector_kd(outputs.vectors, batch.aims)
        if outputs.vectors is not None and weights.vector:
            parts["vector"] = weights.vector, own_passage(batch, outputs.vectors, batch.soft < 1)
        if self.student.spec.projection is not None and weights.reconstruction:
            parts["reconstruction"] = weights.reconstruction, losses.projection_loss(outputs.states)
        if outputs.exits:
            parts["exits"] = (
                weights.exits,
                exit_loss(outputs, teacher_scores(batch), self.settings.temperature),
            )
        total = torch.stack([weight * value for weight, value in parts.values()]).sum()
        return total, {name: value.detach() for name, (_, value) in parts.items()}

    def steady(self, batch: Batch) -> bool:
        """Every step is, where the rank head has one value: others weigh theirs by numbers of the host."""
        return self.student.spec.reads("rank").kind == "rank"

    def _read(self, batch: ReaderBatch, span: Tensor) -> Parts:
        weights, share = self.settings.weights, 1.0 if batch.per_group == PAIR else MINOR
        parts: Parts = {}
        if weights.span:
            parts["span"] = share * weights.span, self._span(batch, span)
        if weights.no_answer:
            parts["no_answer"] = weights.no_answer, self._no_answer(batch, span)
        if weights.span_kd and batch.span is not None:
            value = span_kd(batch, span, batch.span, self.settings.temperature)
            parts["span_kd"] = weights.span_kd, value
        return parts

    def _span(self, batch: ReaderBatch, span: Tensor) -> Tensor:
        """The answer in the query's own passage, and no answer in the others, at half its weight."""
        each = batch.per_group

        def part(rows: slice) -> Tensor:
            logits, label, real = (
                x.view(-1, each, *x.shape[1:])[:, rows].flatten(0, 1)
                for x in (span, batch.label, batch.span_real)
            )
            return losses.span_loss(logits, label, real, self.settings.span)

        return part(slice(0, 1)) + 0.5 * part(slice(1, None))

    def _no_answer(self, batch: ReaderBatch, span: Tensor) -> Tensor:
        """All spans together against no answer: in each passage, in the group, and without its own."""
        text, each = self.student.spec.text, batch.per_group
        special = len(text.passage_prefix), len(text.passage_suffix)
        total = all_spans(span, batch.real[1], *special).view(-1, each)
        known = (batch.label[:, 0] != losses.UNLABELLED).view(-1, each)
        rows, label = torch.arange(len(span), device=span.device), batch.label.clamp(min=0).long()
        gold = span[rows, label[:, 0], 0] + span[rows, label[:, 1], 1] - span[:, 0].sum(-1)
        gold = torch.where(batch.label[:, 0] > 0, gold.float(), 0.0).view(-1, each)
        alone = F.softplus(total) - gold
        own, asked = known[:, 0], known.all(1)
        one = losses.mean_of(alone[:, 0], own) + 0.5 * losses.mean_of(alone[:, 1:], known[:, 1:])
        many = losses.mean_of(F.softplus(total.logsumexp(1)) - gold[:, 0], asked)
        return one + many + WITHOUT * losses.mean_of(F.softplus(total[:, 1:].logsumexp(1)), asked)

    def _rank(self, batch: ReaderBatch, outputs: GroupOutputs) -> Parts:
        weights, share = self.settings.weights, MINOR if batch.per_group == PAIR else 1.0
        score, labelled = outputs.rank.float(), batch.soft < 0.5
        target, known = rank_target(batch)
        parts: Parts = {}
        if weights.rank:
            value = losses.mean_of(-(target * score.log_softmax(1)).sum(1), known)
            parts["rank"] = share * weights.rank, value
        if weights.certainty:
            right = batch.score.view_as(score)
            value = F.binary_cross_entropy_with_logits(score, right, reduction="none").mean(1)
            parts["certainty"] = share * weights.certainty, losses.mean_of(value, labelled)
        taught = teacher_scores(batch)
        if taught is not None and weights.rank_kd:
            value = rank_kd(score, taught, self.settings.temperature)
            parts["rank_kd"] = share * weights.rank_kd, value
        if taught is not None and weights.margin:
            parts["margin"] = share * weights.margin, losses.margin_mse(score, taught) / 2
        if outputs.late is not None and weights.late:
            own = losses.mean_of(-outputs.late.float().log_softmax(1)[:, 0], labelled)
            order = taught if taught is not None else target.clamp(min=1e-6).log()
            parts["late"] = (
                share * weights.late,
                losses.kd(outputs.late, order, 1.0, None) + 0.5 * own,
            )
        return parts


def teacher_scores(batch: ReaderBatch) -> Tensor | None:
    """`[G,C]` what a teacher ranks by, where there is one."""
    return None if batch.rank is None else batch.rank.view(-1, batch.per_group)


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


def all_spans(
    logits_BS2: Tensor, real_BP: Tensor, before: int, after: int, longest: int = 30
) -> Tensor:
    """`[B]` log of the summed weight of all spans of up to `longest` tokens, over that of no answer.

    `before` and `after` count the special tokens of a passage, which are part of no answer.
    """
    place = torch.arange(real_BP.shape[1], device=real_BP.device)
    usable = (place >= before) & (place < real_BP.sum(1, keepdim=True) - after)
    start, end = (losses.masked(logits_BS2[:, 1:, side], usable) for side in (0, 1))
    reach = min(longest, start.shape[1])
    ends = F.pad(end, (0, reach - 1), value=-1e9).unfold(1, reach, 1)
    score = (start[..., None] + ends).flatten(1).logsumexp(1)
    return score - logits_BS2[:, 0].float().sum(-1)
