"""Measures on the user's own pairs how far a split model agrees with the joint model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from decoupled.errors import InputError, OptionError
from decoupled.measure.metrics import answer_f1, best_over, kendall
from decoupled.measure.pairs import Pair
from decoupled.measure.table import ResultTable
from decoupled.model.parts.head import HeadKind
from decoupled.search.engine import Engine
from decoupled.search.request import Request

if TYPE_CHECKING:
    from decoupled.model.model import Model
    from decoupled.model.spec import ModelSpec

COMPANIONS = 9
"""Passages of other queries that a lone pair is ranked against."""

FALLEN = {"rank": 0.8, "span": 0.8, "classes": 0.9, "choice": 0.9}
"""Below this agreement a split should not be used without training."""

Outputs = tuple[Any, ...]
"""Outputs of a model for one case: scores, one answer, or labels."""


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
        """Whether the agreement is too low to use the split without training."""
        return self.score < FALLEN[self.head]

    @property
    def advice(self) -> str:
        """A message that says what to do about an agreement that is too low."""
        return (
            f"at split {self.split} the {self.head} head agrees only {self.score:.2f} with the unsplit "
            "model; train it with `decoupled distill`, or split lower"
        )

    def to_json(self) -> dict[str, object]:
        """The figures as a JSON object, rounded to four digits."""
        plain: dict[str, object] = {"split": self.split, "head": self.head, "queries": self.queries}
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
        raise InputError("the checkpoint has no head, so there is nothing to compare; omit check")
    head = whole.spec.heads[0].kind
    joint, chosen = Engine(whole.split(whole, at=0)), cases(data, head, limit)
    expected = [outputs(joint, case, head) for case in chosen]
    return [agreement(Engine(model), chosen, head, expected) for model in models]


def deepest_split(
    model: Model, data: Iterable[Pair], *, keep: float = 0.9, limit: int = 200, **options: Any
) -> tuple[Model, list[Agreement]]:
    """The deepest split that agrees with the unsplit model on these pairs, and what each of them keeps.

    For a model that is used as it is, without training. The options are those of `Model.split`; where no
    split keeps enough it is the joint model.
    """
    one_way = options.get("one_way", ())
    if isinstance(one_way, tuple) and one_way:
        raise OptionError("at", "auto tries every layer; with it write one_way auto")
    # Where the last layer must advance, one-way layers need another one above the split.
    advance = one_way and any(head.reads_passages for head in model.spec.heads)
    deepest = len(model.spec.layers) - (2 if advance else 1)
    models = [model.split(model, at=k, **options) for k in range(1, deepest + 1)]
    measured = agreements(model, models, data, limit=limit)
    good = [split for split, a in zip(models, measured, strict=True) if a.score >= keep]
    if good:
        # Models come in the order of their splits, so the last is the deepest.
        return good[-1], measured
    sizes = {name: options[name] for name in ("passage_tokens", "stride") if name in options}
    return model.split(model, at=0, **sizes), measured


def cases(pairs: Iterable[Pair], head: HeadKind, limit: int) -> list[Case]:
    """Pairs grouped by query; for ranking, a lone pair gets passages of other queries beside it."""
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        # The options of a choice are queries over one passage, so the passage makes the group.
        key = pair.passage if head == "choice" else pair.query
        if key not in groups and len(groups) == limit:
            break
        groups.setdefault(key, []).append(pair)
    if not groups:
        raise InputError(
            "the data to check with holds no pairs; give at least one query and passage"
        )
    pool = list(dict.fromkeys(p.passage for group in groups.values() for p in group))
    # A fixed seed, so that the same data always gives the same agreement.
    draw, grouped = np.random.default_rng(0), []
    for query, group in groups.items():
        passages = list(dict.fromkeys(p.query if head == "choice" else p.passage for p in group))
        if head == "rank" and len(passages) < 2:
            drawn = [pool[i] for i in draw.permutation(len(pool))[: COMPANIONS + 1]]
            passages += [p for p in drawn if p not in passages][:COMPANIONS]
        golds = tuple(answer.text for p in group for answer in p.answers)
        grouped.append(Case(query=query, passages=tuple(passages), golds=golds))
    if head == "rank" and all(len(case.passages) < 2 for case in grouped):
        raise InputError("one passage cannot be ranked; give data with at least two passages")
    return grouped


def agreement(
    engine: Engine, data: Sequence[Case], head: HeadKind, expected: Sequence[Outputs]
) -> Agreement:
    """Agreement of one split with what the joint model says about the same cases."""
    got = [outputs(engine, case, head) for case in data]
    pairs = list(zip(got, expected, strict=True))
    gold: dict[str, float] = {}
    if head == "rank":
        # A single passage has no order to agree on.
        pairs = [(a, b) for a, b in pairs if len(a) > 1]
        scores = [kendall(a, b) for a, b in pairs]
    elif head == "span":
        scores = [answer_f1(a, b) for (a,), (b,) in pairs]
        if any(case.golds for case in data):
            for name, answers in (("f1", got), ("joint_f1", expected)):
                both = zip(data, answers, strict=True)
                gold[name] = float(np.mean([best_over(case.golds, a)[1] for case, (a,) in both]))
    else:
        scores = [float(x == y) for a, b in pairs for x, y in zip(a, b, strict=True)]
    score = float(np.mean(scores))
    return Agreement(split=engine.spec.split, head=head, score=score, queries=len(pairs), gold=gold)


def outputs(engine: Engine, case: Case, head: HeadKind) -> Outputs:
    """Outputs of a model for one case: scores in the order of the passages, the best answer, or labels."""
    if head == "rank":
        hits = engine.rerank(case.query, texts=case.passages, raw=True)
        return tuple(hit.score for hit in sorted(hits, key=lambda hit: int(hit.id)))
    if head == "span":
        answers = engine.ask(case.query, texts=case.passages, k=1, threshold=0)
        return (answers[0].text if len(answers) else "",)
    if head == "classes":
        labels = engine.classify([(case.query, passage) for passage in case.passages])
        return tuple(label.label for label in labels)
    logits = []
    for option in case.passages:
        (search,) = engine.score([Request(query=option, head="choice", texts=(case.query,))])
        if search.error is not None:
            raise search.error
        # That of the window in which the option fits best.
        logits.append(search.logits["choice"].values.max())
    return (int(np.argmax(logits)),)


def split_facts(model: Model, measured: Sequence[Agreement] = ()) -> dict[str, object]:
    """How a model is split, and how far that agrees with it unsplit, as plain values."""
    spec = model.spec
    return {
        "family": spec.family,
        "layers": len(spec.layers),
        "split": spec.split,
        "positions": spec.positions,
        "one_way": list(spec.one_way),
        "rank_label": next((h.rank_label for h in spec.heads if h.rank_label), None),
        "fingerprint": model.fingerprint,
        "check": [agreement.to_json() for agreement in measured],
    }


def split_lines(spec: ModelSpec) -> Iterator[str]:
    """How a model is split, in words, and what its heads are for."""
    yield f"{spec.family}, {spec.split} of {len(spec.layers)} layers run on each text alone"
    for head in spec.heads:
        if head.rank_label:
            yield f"ranks by the odds of {head.rank_label!r} (--rank-label)"
        elif head.kind == "classes":
            two = "; to rank with it, give --rank-label" if len(head.labels) == 2 else ""
            yield f"classifies ({', '.join(head.labels)}) and does not rank{two}"
    if spec.one_way:
        layers = ", ".join(map(str, spec.one_way))
        yield f"one-way: layers {layers} move the query alone; train it with `decoupled distill`"


def agreement_table(measured: Sequence[Agreement]) -> ResultTable:
    """A table of the agreement of each split."""
    rows = [(a.split, a.head, a.score, a.queries, "fell" if a.fell else "") for a in measured]
    return ResultTable(columns=("split", "head", "agreement", "queries", ""), rows=rows)
