"""The losses: pure functions of tensors. Each that compares two models is 0 when they are equal.

`real` marks what counts; padding never does, so a loss is the same whatever a batch is padded to. Everything
is computed in fp32. A pair without a label has `UNLABELLED` there and adds nothing to the task loss.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.errors import InputError
from decoupled.train.data.batches import Batch
from decoupled.train.data.tasks import Task
from decoupled.train.recipe import Distillation

Reduce = Literal["mean", "sum"]
KL = Literal["forward", "reverse"]

UNLABELLED = -100
"""The label of a pair that only a teacher can judge."""


def masked(logits: Tensor, real: Tensor) -> Tensor:
    """Logits with padding pushed so low that a softmax gives it no weight."""
    # Finite, since a row of padding alone would be NaN under -inf.
    return logits.float().masked_fill(~real, -1e9)


def mean_of(values: Tensor, counted: Tensor) -> Tensor:
    """The mean of the values that are counted; 0 where none is."""
    # The clamp keeps the mean of nothing at 0 instead of NaN.
    return (values * counted).sum() / counted.sum().clamp(min=1)


# Task losses --------------------------------------------------------------------------------------


def cross_entropy(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    """Mean cross-entropy over the labelled rows; 0 where there are none."""
    total = F.cross_entropy(
        logits_NC.float(), label_N.long(), ignore_index=UNLABELLED, reduction="sum"
    )
    return total / (label_N != UNLABELLED).sum().clamp(min=1)


def span_loss(logits_BS2: Tensor, label_B2: Tensor, real_BS: Tensor, reduce: Reduce) -> Tensor:
    """Cross-entropy of start and of end over no-answer and the passage's tokens (DeFormer, A3)."""
    start = cross_entropy(masked(logits_BS2[..., 0], real_BS), label_B2[:, 0])
    end = cross_entropy(masked(logits_BS2[..., 1], real_BS), label_B2[:, 1])
    return start + end if reduce == "sum" else (start + end) / 2


def choice_loss(scores_GC: Tensor, chosen_GC: Tensor) -> Tensor:
    """Cross-entropy over the options of a question; `chosen` is 1 at the right one (DeFormer, A2)."""
    return F.cross_entropy(scores_GC.float(), chosen_GC.argmax(1))


def rank_bce(score_B: Tensor, relevance_B: Tensor) -> Tensor:
    """Binary cross-entropy of each pair on its own; a grade above 0 is relevant."""
    return F.binary_cross_entropy_with_logits(score_B.float(), (relevance_B > 0).float())


def rank_listwise(scores_GC: Tensor, relevance_GC: Tensor) -> Tensor:
    """Softmax cross-entropy over the passages of a query, grades as target weights (ListNet)."""
    # Grades as a distribution; a query without a relevant passage adds nothing.
    target = relevance_GC.float().clamp(min=0)
    target = target / target.sum(1, keepdim=True).clamp(min=1e-9)
    return -(target * scores_GC.float().log_softmax(1)).sum(1).mean()


def margin_mse(scores_GC: Tensor, target_GC: Tensor) -> Tensor:
    """Squared error of every score difference within a group (margin-MSE, Hofstätter et al., 2020).

    The mean over all ordered pairs of a group is twice the variance of the errors, so no pair is formed.
    """
    # mean_ij (e_i - e_j)^2 = 2 Var(e), over all ordered pairs of a group.
    error = scores_GC.float() - target_GC.float()
    return 2 * (error - error.mean(1, keepdim=True)).square().mean()


# Losses against a teacher -------------------------------------------------------------------------


def kd(
    student_NC: Tensor,
    teacher_NC: Tensor,
    temperature: float,
    real_NC: Tensor | None,
    kl: KL = "forward",
) -> Tensor:
    """T²·mean KL(teacher ‖ student) of the softened distributions (DeFormer, equation 3), or its reverse.

    Padded entries, where `real` is false, are left out before the softmax.
    """
    # Softened by T; the factor T^2 keeps the gradient's size independent of T (Hinton et al.,
    # 2015).
    student, teacher = student_NC.float() / temperature, teacher_NC.float() / temperature
    if real_NC is not None:
        student, teacher = masked(student, real_NC), masked(teacher, real_NC)
    log_q, log_p = student.log_softmax(-1), teacher.log_softmax(-1)
    if kl == "reverse":
        log_q, log_p = log_p, log_q
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1).mean()


def binary(score_B: Tensor) -> Tensor:
    """A lone score as the two logits of yes and no, so that `kd` applies to it."""
    # sigmoid(s) is the softmax of (s, 0).
    return torch.stack([score_B, torch.zeros_like(score_B)], -1)


def state_mse(a_BTD: Tensor, b_BTD: Tensor, real_BT: Tensor | None) -> Tensor:
    """Mean squared difference over the features of real tokens; `real` None means that all are real."""
    if real_BT is None:
        return F.mse_loss(a_BTD.float(), b_BTD.float())
    weight = real_BT[..., None].float()
    total = ((a_BTD.float() - b_BTD.float()).square() * weight).sum()
    return total / (weight.sum() * a_BTD.shape[-1]).clamp(min=1)


def lrs(
    student: Sequence[Tensor],
    teacher: Sequence[Tensor],
    real: Sequence[Tensor | None],
    pooled: tuple[Tensor, Tensor] | None = None,
    reduce: Reduce = "mean",
) -> Tensor:
    """Layer-wise representation similarity: mean over the cross layers of `state_mse` (DeFormer, equation 4).

    With `reduce="sum"` the squared distances of tokens, summed over the layers.

    `real` has a mask `[B,T]` for each layer of the student. Layers pair from the top, so a student with
    more of them matches its last ones. For classifiers the pooled vectors are one more term.
    """
    # From the top, and zip stops at the shorter: a deeper student's lower layers have no partner.
    pairs = zip(reversed(student), reversed(teacher), reversed(real), strict=False)
    terms = [state_mse(s, t, counted) for s, t, counted in pairs]
    if pooled is not None:
        terms.append(F.mse_loss(pooled[0].float(), pooled[1].float()))
    if not terms:  # with every layer below the split
        return torch.zeros(())
    every = torch.stack(terms)
    # state_mse divides by the width; the sum of squared distances has it back.
    return every.mean() if reduce == "mean" else every.sum() * student[-1].shape[-1]


def spread(layers: Sequence[Tensor], count: int) -> tuple[Tensor, ...]:
    """`count` of the layers, evenly spaced, the last one among them: TinyBERT's map m·L/M."""
    if count >= len(layers):
        return tuple(layers)
    return tuple(layers[(m + 1) * len(layers) // count - 1] for m in range(count))


def attention_mse(
    student_BHTT: Tensor, teacher_BHTT: Tensor, real_BT: Tensor, moved_BT: Tensor | None = None
) -> Tensor:
    """Squared difference of attention scores, masked entries zeroed in both (as TinyBERT has it).

    The mean is over pairs of real tokens and heads; only `moved` tokens look, where that is given.
    """
    # [B,T,T]: looking token x seen token.
    seen_BTT = (real_BT if moved_BT is None else moved_BT)[:, :, None] & real_BT[:, None, :]
    error = (student_BHTT.float() - teacher_BHTT.float()).masked_fill(~seen_BTT[:, None], 0.0)
    return error.square().sum() / (seen_BTT.sum() * student_BHTT.shape[1]).clamp(min=1)


# By task and by batch -----------------------------------------------------------------------------


def projection_loss(states: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Mean over the squeezed sides of ‖up(down(h)) - h‖², with h detached (Decoupled Transformer, 4)."""
    if not states:
        raise InputError("a reconstruction needs a learned projection, and the model has none")
    # Detached: the projection must follow the states, not the states the projection.
    terms = [state_mse(back, h.detach(), real) for h, back, real in states]
    return torch.stack(terms).mean()


def task_loss(task: Task, settings: Distillation, logits: Tensor, batch: Batch) -> Tensor:
    """The task's own loss on the labels of a batch."""
    if task.head == "span":
        return span_loss(logits, batch.label, batch.span_real, settings.span)
    if task.head == "classes":
        return cross_entropy(logits, batch.label[:, 0])
    if task.head == "choice":
        chosen = batch.label[:, 0].view(-1, batch.per_group)
        return choice_loss(grouped(logits, batch), chosen)
    if settings.rank == "bce" or batch.per_group == 1:
        return rank_bce(logits[:, 0], batch.label[:, 0])
    if settings.rank == "margin":
        return margin_mse(grouped(logits, batch), grouped(batch.score, batch))
    return rank_listwise(grouped(logits, batch), grouped(batch.label[:, 0], batch))


def soft_loss(
    task: Task, logits: Tensor, soft: Tensor, batch: Batch, temperature: float, kl: KL = "forward"
) -> Tensor:
    """`kd` on the distributions of a task: positions, classes, options, passages, or yes and no."""
    if task.head == "span":
        # [B,S,2] -> [B,2,S]: start and end are two distributions over positions.
        real = batch.span_real[:, None].expand(-1, 2, -1)
        return kd(logits.transpose(1, 2), soft.transpose(1, 2), temperature, real, kl)
    if task.head == "classes":
        return kd(logits, soft, temperature, None, kl)
    if batch.per_group > 1:
        return kd(grouped(logits, batch), grouped(soft, batch), temperature, None, kl)
    return kd(binary(logits[:, 0]), binary(soft[:, 0]), temperature, None, kl)


def grouped(values: Tensor, batch: Batch) -> Tensor:
    """`[G,C]` values of the pairs of each group."""
    return values.reshape(-1, batch.per_group)
