"""What `split --check` compares: how pairs become cases, and what two models' words are worth."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from decoupled.errors import InputError, OptionError
from decoupled.measure import agreement as measured
from decoupled.measure.agreement import Case, agreement, cases, deepest_split
from decoupled.measure.pairs import Pair, Span
from decoupled.model.model import Model


def pair(query: str, passage: str, *golds: str) -> Pair:
    answers = tuple(Span(text=gold, start=0) for gold in golds)
    return Pair(query=query, passage=passage, answers=answers)


PAIRS = [
    pair("q1", "a", "x"),
    pair("q1", "b"),
    pair("q2", "c"),
    pair("q1", "a", "y"),
    pair("q3", "d"),
]


def test_pairs_are_grouped_by_their_query_up_to_the_limit():
    found = cases(PAIRS, "span", 2)
    assert found == [
        Case(query="q1", passages=("a", "b"), golds=("x", "y")),
        Case(query="q2", passages=("c",)),
    ]
    assert len(cases(PAIRS, "span", 3)) == 3
    with pytest.raises(InputError, match="holds no pairs"):
        cases([], "span", 2)


def test_options_of_a_choice_are_grouped_by_their_passage():
    given = [pair("one", "text"), pair("two", "text"), pair("one", "other")]
    assert cases(given, "choice", 9) == [
        Case(query="text", passages=("one", "two")),
        Case(query="other", passages=("one",)),
    ]


def test_a_lone_passage_is_ranked_against_those_of_others():
    many = [pair(f"q{n}", f"passage {n}") for n in range(30)]
    for number, case in enumerate(cases(many, "rank", 30)):
        assert case.passages[0] == f"passage {number}" and len(set(case.passages)) == 10
    two = cases([pair("q", "a"), pair("q", "b"), pair("p", "c")], "rank", 9)
    assert two[0].passages == ("a", "b"), "several of its own are enough"
    assert set(two[1].passages) == {"a", "b", "c"}
    assert [c.passages for c in cases(many[:2], "span", 9)] == [("passage 0",), ("passage 1",)]
    with pytest.raises(InputError, match="one passage cannot be ranked"):
        cases([pair("q", "a"), pair("p", "a")], "rank", 9)


@pytest.mark.parametrize(
    ("head", "got", "expected", "score", "queries"),
    [
        ("rank", [(3, 2, 1), (1, 2), (5,)], [(3, 2, 1), (2, 1), (9,)], 0.0, 2),
        ("span", [("the river",), ("a town",)], [("river",), ("hill",)], 0.5, 2),
        ("classes", [("yes", "no"), ("no",)], [("yes", "yes"), ("no",)], 2 / 3, 2),
        ("choice", [(1,), (0,)], [(1,), (2,)], 0.5, 2),
    ],
)
def test_the_agreement_of_what_was_said(monkeypatch, head, got, expected, score, queries):
    words = iter(got)
    monkeypatch.setattr(measured, "outputs", lambda *given: next(words))
    engine = SimpleNamespace(spec=SimpleNamespace(split=4))
    data = [Case(query="q", passages=("a", "b"))] * len(got)
    found = agreement(engine, data, head, expected)
    assert (found.split, found.head, found.queries, found.gold) == (4, head, queries, {})
    assert found.score == pytest.approx(score)


def test_gold_answers_judge_both(monkeypatch):
    words = iter([("river",), ("",)])
    monkeypatch.setattr(measured, "outputs", lambda *given: next(words))
    data = [
        Case(query="q", passages=("a",), golds=("the river",)),
        Case(query="p", passages=("b",)),
    ]
    found = agreement(
        SimpleNamespace(spec=SimpleNamespace(split=1)), data, "span", [("hill",), ("",)]
    )
    assert found.gold == {"f1": 1.0, "joint_f1": 0.5}
    assert found.to_json()["joint_f1"] == 0.5 and found.fell


@pytest.mark.parametrize("head", ["rank", "span", "classes", "choice"])
def test_every_head_agrees_with_itself(model, head):
    whole = model("bert", head)
    texts = ["the river floods the town", "count Dracula of the house", "a novel of the sea"]
    given = [pair(f"who {n}", text) for n in range(2) for text in texts]
    if head == "choice":
        given = [pair(f"option {n}", text) for n in range(3) for text in texts]
    same, split = measured.agreements(whole, [whole, Model.split(whole, at=3)], given)
    assert same.score == pytest.approx(1.0) and same.queries == (3 if head == "choice" else 2)
    assert -1 <= split.score <= 1 and not same.fell


def test_the_deepest_split_that_keeps_enough(model, monkeypatch):
    whole = model("bert", "rank")
    scores = {1: 0.95, 2: 0.9}

    def told(of, models, data, *, limit):
        assert limit == 200
        return [SimpleNamespace(score=scores[m.spec.split]) for m in models]

    monkeypatch.setattr(measured, "agreements", told)
    assert deepest_split(whole, PAIRS)[0].spec.split == 2, "as much as asked for is enough"
    scores[2] = 0.89
    made, found = deepest_split(whole, PAIRS)
    assert made.spec.split == 1 and len(found) == 2, "the last layer stays above the split"
    assert deepest_split(whole, PAIRS, keep=0.96, stride=7)[0].spec.split == 0
    assert deepest_split(whole, PAIRS, keep=0.96, stride=7)[0].spec.text.stride == 7
    with pytest.raises(OptionError, match=r"with it write .*one.way auto"):
        deepest_split(whole, PAIRS, one_way=(2,))
    spans = model("bert", "span")
    assert [len(deepest_split(spans, PAIRS, **o)[1]) for o in ({}, {"one_way": "auto"})] == [2, 1]
