"""Does the split model still say what the joint model says? Measured on the user's own pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoupled.errors import InputError
from decoupled.index.documents import Pair
from decoupled.measure.quality import answer_f1, best_over, kendall
from decoupled.model.parts.head import HeadKind
from decoupled.search.engine import Engine

COMPANIONS = 9
"""Passages of other queries that a lone pair is ranked against."""

FALLEN = {"rank": 0.8, "span": 0.8, "classes": 0.9, "choice": 0.9}
"""Below this agreement a split should not be used without training."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far a split model agrees with the same weights unsplit."""

    split: int
    head: HeadKind
    score: float
    """Mean Kendall's tau for `rank`, F1 between both answers for `span`, share of equal labels else."""
    queries: int
    gold: dict[str, float] = field(default_factory=dict)
    """With gold answers: their F1 for the split and for the joint model."""

    @property
    def fell(self) -> bool:
        """Is it too low to use the split without training?"""
        return self.score < FALLEN[self.head]

    def to_json(self) -> dict[str, Any]:
        """Plain values, rounded."""
        plain: dict[str, Any] = {"split": self.split, "head": self.head, "queries": self.queries}
        plain |= {"agreement": round(self.score, 4), "fell": self.fell}
        return plain | {name: round(value, 4) for name, value in self.gold.items()}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One query with the passages that it is judged on, and gold answers where there are any.

    For `choice` it is the other way round: one passage, and the options that are asked about it.
    """

    query: str
    passages: tuple[str, ...]
    golds: tuple[str, ...] = ()


def cases(pairs: Iterable[Pair], head: HeadKind, limit: int = 200, seed: int = 0) -> list[Case]:
    """Pairs grouped by query; for ranking, a lone pair gets passages of other queries beside it."""
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        # The options of a choice are queries over one passage, so there the passage makes the group.
        key = pair.passage if head == "choice" else pair.query
        if key not in groups and len(groups) == limit:
            break
        groups.setdefault(key, []).append(pair)
    if not groups:
        raise InputError(
            "the data to check with holds no pairs; give at least one query and passage"
        )
    pool = list(dict.fromkeys(p.passage for group in groups.values() for p in group))
    draw = np.random.default_rng(seed)
    found = []
    for query, group in groups.items():
        others = (p.query if head == "choice" else p.passage for p in group)
        passages = list(dict.fromkeys(others))
        if head == "rank" and len(passages) < 2:
            drawn = [pool[i] for i in draw.permutation(len(pool))[: COMPANIONS + 1]]
            passages += [p for p in drawn if p not in passages][:COMPANIONS]
        golds = tuple(answer.text for p in group for answer in p.answers)
        found.append(Case(query=query, passages=tuple(passages), golds=golds))
    if head == "rank" and all(len(case.passages) < 2 for case in found):
        raise InputError("one passage cannot be ranked; give data with at least two passages")
    return found


class Reference:
    """The joint model's outputs on some cases, computed once and compared with any number of splits."""

    def __init__(self, joint: Engine, data: Sequence[Case], head: HeadKind) -> None:
        self.data = data
        self.head: HeadKind = head
        self.expected = [outcome(joint, case, head) for case in data]

    def compare(self, engine: Engine) -> Agreement:
        """Agreement of one split with the joint model."""
        got = [outcome(engine, case, self.head) for case in self.data]
        pairs = list(zip(got, self.expected, strict=True))
        gold: dict[str, float] = {}
        if self.head == "rank":
            pairs = [(a, b) for a, b in pairs if len(a.scores) > 1]
            scores = [kendall(a.scores, b.scores) for a, b in pairs]
        elif self.head == "span":
            scores = [answer_f1(a.answer, b.answer) for a, b in pairs]
            if any(case.golds for case in self.data):
                gold = {"f1": self._gold_f1(got), "joint_f1": self._gold_f1(self.expected)}
        else:
            labels = ((a.labels, b.labels) for a, b in pairs)
            scores = [float(x == y) for both in labels for x, y in zip(*both, strict=True)]
        return Agreement(
            split=engine.spec.split,
            head=self.head,
            score=float(np.mean(scores)),
            queries=len(pairs),
            gold=gold,
        )

    def _gold_f1(self, outcomes: Sequence[Outcome]) -> float:
        both = zip(self.data, outcomes, strict=True)
        return float(np.mean([best_over(case.golds, out.answer)[1] for case, out in both]))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a model says about one case."""

    scores: tuple[float, ...] = ()
    answer: str = ""
    labels: tuple[str, ...] = ()


def outcome(engine: Engine, case: Case, head: HeadKind) -> Outcome:
    """Scores in the order of the passages, the best answer, or the labels."""
    if head == "rank":
        hits = engine.rerank(case.query, texts=case.passages, raw=True)
        scores = {int(hit.id): hit.score for hit in hits}
        return Outcome(scores=tuple(scores[i] for i in range(len(case.passages))))
    if head == "span":
        answers = engine.ask(case.query, texts=case.passages, k=1)
        return Outcome(answer=answers[0].text if len(answers) else "")
    if head == "choice":
        logits = engine.pair_logits([(option, case.query) for option in case.passages], "choice")
        return Outcome(labels=(str(int(np.argmax(np.concatenate(logits)))),))
    labels = engine.classify([(case.query, passage) for passage in case.passages])
    return Outcome(labels=tuple(label.label for label in labels))
