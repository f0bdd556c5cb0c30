"""The objective `adapt`: rank as a teacher's scores do, and stay what one was in all else.

What the student says before it is adapted is the target of whatever the teacher says nothing about: where
answers lie, and the vectors of texts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.head import HeadKind, HeadSpec
from decoupled.train import losses
from decoupled.train.data.batches import Batch, repeated
from decoupled.train.data.scored import ScoredBatch
from decoupled.train.data.tasks import Task
from decoupled.train.loop.forward import Pass, forward_pair
from decoupled.train.objectives.base import Objective
from decoupled.train.recipe import Optimiser, Recipe, Settings, check, check_bits

SHARPNESS = 20.0
"""Inverse temperature of the cosine similarity of unit vectors."""
NEIGHBOURS = 0.2
"""Weight of the similarities within a batch, beside the vectors themselves."""
YES_NO = 0.3
"""Weight of each pair's own yes or no, beside the order of a group."""

TeacherLogits = Callable[[Tensor], Tensor]
"""Turns a teacher's logits into the student's target."""
Parts = dict[str, Tensor]
"""The losses by the names of their weights."""


@dataclass(frozen=True, kw_only=True)
class AdaptationWeights:
    """The weight of each loss; 0 leaves it out."""

    rank_kd: float = 1.0
    """Order of the candidates, and each one's yes or no, against the teacher's scores."""
    margin: float = 0.05
    """Differences between the scores of candidates, against the teacher's."""
    late: float = 0.3
    """Scores of late interaction, against the teacher's."""
    lrs: float = 0.1
    """Hidden states; needs a teacher of the same shape, which then runs in every step."""
    span_kd: float = 1.0
    """Spans of answers, against what the student said before."""
    vector_kd: float = 4.0
    """Vectors of texts, against the student's own of before."""
    vector: float = 0.05
    """Contrastive loss of the passage that a query was made from, among all of a batch."""
    reconstruction: float = 0.1
    """States against what the learned projection gives back."""


@dataclass(frozen=True, kw_only=True)
class Adaptation(Settings):
    """The settings of `adapt` beside the core of a recipe."""

    renamed: ClassVar[Mapping[str, str]] = {"reader": "weights", "drawing": "", "squeeze": ""}

    weights: AdaptationWeights = AdaptationWeights()
    temperature: float = 1.0
    passages: int = 8
    """The number of candidates of each query."""
    tokens: int = 256
    """The most tokens of a passage."""
    bits: int | None = 8
    """Bits of the codes that passage states are rounded to while training; None does not round."""

    def __post_init__(self) -> None:
        check(self, "above 0", "temperature")
        check(self, "from 1", "passages", "tokens")
        check_bits(self.bits)


ADAPT = Recipe(
    name="adapt",
    objective="adapt",
    optimiser=Optimiser(lr=5e-5, epochs=1.0, batch=16, warmup=0.1),
    settings=Adaptation(),
)
"""A split model on the texts of an index, taught by scores alone."""


@dataclass(frozen=True, kw_only=True)
class GroupOutputs:
    """The results of one pass over a batch of groups."""

    span: Tensor | None
    """`[B,1+P,2]` span logits; None for a model without that head."""
    rank: Tensor
    """`[G,C]` rank logits, the query's own passage first."""
    hidden: tuple[Tensor, ...]
    moved: tuple[Tensor, ...]
    """The tokens that each layer moved, as in `PairOutputs`."""
    vectors: tuple[Tensor, Tensor] | None
    """Unit vectors of the queries `[G,V]` and of the passages `[B,V]`, where they were asked for."""
    states: tuple[tuple[Tensor, Tensor, Tensor], ...]
    late: Tensor | None = None
    """`[G,C]` scores of late interaction; None for a model without it."""
    exits: tuple[Tensor, ...] = ()
    """`[G,C]` rank logits of each exit."""


def read_groups(
    net: PairEncoder, batch: Batch, how: Pass = Pass(), *, vectors: bool = True
) -> GroupOutputs:
    """The logits of the rank and span heads, the vectors and the late scores of a batch."""
    ranks = net.spec.reads("rank")
    reads: list[HeadKind] = [head.kind for head in net.spec.heads if head.kind == "span"]
    out = forward_pair(net, batch, *reads, ranks.kind, how=how)
    pooled = [net.pool(side.before, side.real) for side in out.sides] if vectors else []
    late = None
    if net.late is not None:
        sides = [repeated(x, s.repeat) for s in out.sides for x in (s.codes, s.real)]
        late = net.late.score(*sides).view(-1, batch.per_group)
    return GroupOutputs(
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
    """`[B]` scores to rank by: the rank logit, or the log-odds of the `rank_label`."""
    if head.kind == "rank":
        return logits_BL[:, 0]
    return logits_BL @ logits_BL.new_tensor(head.signs)


class Adapt(Objective):
    """The weighted sum of the losses against the teacher's scores and against the student of `before`.

    With `keep` the input component stands still, and every stored state with it. A teacher whose layers are
    compared runs in every step; where it alone teaches, `logits_to_rank` turns its logits into the target.
    """

    settings_kind = Adaptation
    before: PairEncoder | None

    def __init__(
        self,
        student: PairEncoder,
        task: Task,
        recipe: Recipe,
        *,
        teacher: PairEncoder | None = None,
        before: PairEncoder | None = None,
        keep: bool = False,
        logits_to_rank: TeacherLogits | None = None,
    ) -> None:
        super().__init__(student, task, recipe, teacher=teacher)
        self.settings = self.recipe.of(Adaptation)
        self.keep, self.logits_to_rank = keep, logits_to_rank
        spec = self.student.spec
        moves = spec.vector is not None and not keep
        stays = moves or any(head.kind == "span" for head in spec.heads)
        # Past `nn.Module`, so that these weights are neither trained nor saved with the student.
        self.__dict__["before"] = before if stays else None
        if not moves:
            # A vector that stands still, or that nobody learnt, has nothing to be compared with.
            weights = replace(self.settings.weights, vector=0.0, vector_kd=0.0)
            self.settings = replace(self.settings, weights=weights)

    def trains(self, name: str) -> bool:
        """Every parameter, or with `keep` only those that made no stored state."""
        return not (self.keep and self.student.spec.is_input(name))

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and each loss before its weight, detached."""
        batch, weights = cast(ScoredBatch, batch), self.settings.weights
        # Without dropout: differences between candidates are small, and its noise is as large as they are.
        self.student.eval()
        target_B, before = batch.rank, None
        if self.before is not None:
            with torch.no_grad():
                near = bool(weights.vector_kd)
                before = read_groups(self.before.eval(), batch, vectors=near)
        how = Pass(bits=self.settings.bits, hidden=bool(weights.lrs and self.teacher))
        near = bool(weights.vector or (weights.vector_kd and before and before.vectors))
        outputs = read_groups(self.student, batch, how, vectors=near)
        parts: Parts = {}
        if self.teacher is not None and weights.lrs:
            with torch.no_grad():
                how = Pass(hidden=True)
                teacher_outputs = forward_pair(self.teacher.eval(), batch, "rank", how=how)
            if self.logits_to_rank is not None:
                target_B = self.logits_to_rank(teacher_outputs.by_head["rank"][:, 0].float())
            parts["lrs"] = losses.lrs(outputs.hidden, teacher_outputs.hidden, outputs.moved)
        target_GC = target_B.view_as(outputs.rank)
        parts |= self._ranking(outputs, target_GC) | self._staying(batch, outputs, before)
        if self.student.spec.projection is not None and weights.reconstruction:
            parts["reconstruction"] = losses.projection_loss(outputs.states)
        total = torch.stack([getattr(weights, n) * value for n, value in parts.items()]).sum()
        return total, {name: value.detach() for name, value in parts.items()}

    def _ranking(self, outputs: GroupOutputs, target_GC: Tensor) -> Parts:
        """The losses against the teacher's scores."""
        weights, score_GC = self.settings.weights, outputs.rank.float()
        parts: Parts = {}
        if weights.rank_kd:
            parts["rank_kd"] = rank_kd(score_GC, target_GC, self.settings.temperature)
        if weights.margin:
            # Halved, this is the variance of the errors within a group.
            parts["margin"] = losses.margin_mse(score_GC, target_GC) / 2
        if outputs.late is not None and weights.late:
            parts["late"] = losses.kd(outputs.late, target_GC, 1.0, None)
        return parts

    def _staying(
        self, batch: ScoredBatch, outputs: GroupOutputs, before: GroupOutputs | None
    ) -> Parts:
        """The losses of spans and vectors against what they were before."""
        weights = self.settings.weights
        parts: Parts = {}
        was = None if before is None else before.span
        if outputs.span is not None and was is not None and weights.span_kd:
            parts["span_kd"] = span_kd(batch, outputs.span, was, self.settings.temperature)
        if outputs.vectors is None:
            return parts
        if before is not None and before.vectors is not None and weights.vector_kd:
            parts["vector_kd"] = vector_kd(outputs.vectors, before.vectors)
        if weights.vector:
            parts["vector"] = own_passage(batch, outputs.vectors, batch.sourced)
        return parts


def rank_kd(score_GC: Tensor, target_GC: Tensor, temperature: float) -> Tensor:
    """KL of the order within each group, and of each pair's yes or no, against the target."""
    yes_no = losses.kd(losses.binary(score_GC), losses.binary(target_GC), temperature, None)
    return losses.kd(score_GC, target_GC, temperature, None) + YES_NO * yes_no


def span_kd(batch: Batch, ours_BS2: Tensor, theirs_BS2: Tensor, temperature: float) -> Tensor:
    """KL of start and end positions, which are two choices, against those of another model."""
    real = batch.span_real[:, None].expand(-1, 2, -1)
    # `kd` takes the mean over start and end; their sum counts both choices whole.
    return 2 * losses.kd(ours_BS2.transpose(1, 2), theirs_BS2.transpose(1, 2), temperature, real)


def vector_kd(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> Tensor:
    """Unit vectors of queries and passages against other ones, and the similarities between them.

    Where ours are narrower, the first values of the others are the target; where they are wider, the
    similarities alone.
    """
    queries, passages = (x.float() for x in ours)
    target = SHARPNESS * theirs[0] @ theirs[1].T
    value = losses.kd(SHARPNESS * queries @ passages.T, target, 1.0, None)
    if queries.shape[1] > theirs[0].shape[1]:
        return value
    apart = [
        # Prefixes are normalised again: the first values of a unit vector are no unit vector.
        1 - (x * F.normalize(other[:, : x.shape[1]], dim=-1)).sum(1).mean()
        for x, other in zip((queries, passages), theirs, strict=True)
    ]
    return apart[0] + apart[1] + NEIGHBOURS * value


def own_passage(batch: Batch, vectors: tuple[Tensor, Tensor], counted_G: Tensor) -> Tensor:
    """Contrastive loss of each counted query's own passage, first of its group, among all of the batch."""
    queries, passages = vectors
    scores = SHARPNESS * queries.float() @ passages.float().T
    own_G = torch.arange(len(queries), device=scores.device) * batch.per_group
    # The passages of other groups that are a query's own again are no wrong ones.
    ids = batch.passage_ids
    again_GB = (ids[own_G][:, None] == ids).all(-1).scatter(1, own_G[:, None], False)
    scores = scores.masked_fill(again_GB, -torch.inf)
    return losses.mean_of(F.cross_entropy(scores, own_G, reduction="none"), counted_G)


OBJECTIVE = Adapt
