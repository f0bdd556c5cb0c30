"""What a model says about judged examples, how good that is, and how far two models say the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decoupled.measure.quality import answer_f1, kendall
from decoupled.model.model import Model
from decoupled.train.data.examples import Examples
from decoupled.train.data.tasks import Task
from decoupled.train.evaluate import (
    Answers,
    Floats,
    How,
    answer_metrics,
    answers,
    pair_logits,
    pair_metrics,
)


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a model says about the examples."""

    metrics: dict[str, float]
    spans: Answers | None = None
    logits: Floats | None = None


def say(model: Model, task: Task, examples: Examples) -> Said:
    """One pass over the examples: metrics, and what agreement is computed from."""
    if task.head == "span":
        found = answers(model.net, examples, task, How())
        return Said(metrics=answer_metrics(found, examples, task.threshold), spans=found)
    logits = pair_logits(model.net, examples, task, How())
    metrics = pair_metrics(logits, examples, task)
    if task.head == "choice":
        logits = logits[:, 0].reshape(-1, examples.per_group)
    return Said(metrics=metrics, logits=logits)


def agreement(one: Said, other: Said, task: Task, examples: Examples) -> float:
    """F1 between both answers, mean Kendall's tau of both orders, or the share of equal labels."""
    if one.spans is not None and other.spans is not None:
        both = zip(one.spans.texts, other.spans.texts, strict=True)
        return float(np.mean([answer_f1(a, b) for a, b in both]))
    assert one.logits is not None and other.logits is not None
    if task.head == "rank":
        groups = [examples.question == number for number in np.unique(examples.question)]
        taus = [kendall(one.logits[g, 0], other.logits[g, 0]) for g in groups if g.sum() > 1]
        return float(np.mean(taus)) if taus else 1.0
    return float((one.logits.argmax(1) == other.logits.argmax(1)).mean())
