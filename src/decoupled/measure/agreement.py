"""Does the split model still say what the joint model says? Measured on the user's own pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from decoupled.errors import InputError, OptionError
from decoupled.index.documents import Pair
from decoupled.measure.metrics import answer_f1, best_over, kendall
from decoupled.model.parts.head import HeadKind
from decoupled.search.engine import Engine
from decoupled.search.request import Request

if TYPE_CHECKING:
    from decoupled.model.model import Model

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


def agreements(
    whole: Model, models: Iterable[Model], data: Iterable[Pair], *, limit: int = 200
) -> list[Agreement]:
    """How far each of the models agrees with the whole one unsplit, on the pairs of the first queries."""
    if not whole.spec.heads:
        raise OptionError(
            "the checkpoint has no head, so there is nothing to compare; omit --check"
        )
    head = whole.spec.heads[0].kind
    joint = whole.split(whole, at=0)
    reference = Reference(Engine(joint), cases(data, head, limit), head)
    return [reference.compare(Engine(model)) for model in models]


def deepest_split(
    model: Model, data: Iterable[Pair], *, keep: float = 0.9, limit: int = 200, **options: Any
) -> tuple[Model, list[Agreement]]:
    """The deepest split that agrees with the unsplit model on these pairs, and what each of them keeps.

    For a model that is used as it is, without training. The options are those of `Model.split`; where no
    split keeps enough it is the joint model.
    """
    one_way = options.get("one_way", ())
    if isinstance(one_way, tuple) and one_way:
        raise OptionError("--at auto tries every layer; with it write --one-way auto")
    # Where the last layer must advance, one-way layers need another one above the split.
    advance = one_way and any(head.reads_passages for head in model.spec.heads)
    deepest = len(model.spec.layers) - (2 if advance else 1)
    models = [model.split(model, at=k, **options) for k in range(1, deepest + 1)]
    measured = agreements(model, models, data, limit=limit)
    good = [split for split, a in zip(models, measured, strict=True) if a.score >= keep]
    return (good[-1] if good else model.split(model, at=0, **_sizes(options))), measured


def _sizes(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a joint model takes too."""
    return {name: options[name] for name in ("passage_tokens", "stride") if name in options}


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
    made = []
    for query, group in groups.items():
        others = (p.query if head == "choice" else p.passage for p in group)
        passages = list(dict.fromkeys(others))
        if head == "rank" and len(passages) < 2:
            drawn = [pool[i] for i in draw.permutation(len(pool))[: COMPANIONS + 1]]
            passages += [p for p in drawn if p not in passages][:COMPANIONS]
        golds = tuple(answer.text for p in group for answer in p.answers)
        made.append(Case(query=query, passages=tuple(passages), golds=golds))
    if head == "rank" and all(len(case.passages) < 2 for case in made):
        raise InputError("one passage cannot be ranked; give data with at least two passages")
    return made


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
        logits = [_choice_logit(engine, option, case.query) for option in case.passages]
        return Outcome(labels=(str(int(np.argmax(logits))),))
    labels = engine.classify([(case.query, passage) for passage in case.passages])
    return Outcome(labels=tuple(label.label for label in labels))


def _choice_logit(engine: Engine, option: str, passage: str) -> float:
    """That of the window in which the option fits best."""
    (search,) = engine.score([Request(query=option, head="choice", texts=(passage,))])
    if search.error is not None:
        raise search.error
    return float(search.logits["choice"].values.max())
