"""The span decoder against brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decoupled.index.record import Excerpt
from decoupled.model.states import Encoding, Ragged, States
from decoupled.search.answers import UNFIT, best_spans, likely_answers, outcome, window_scores
from decoupled.search.request import Request, SearchRun, Windows
from decoupled.search.results import Answer, Answers


def brute(logits, before, after, max_tokens):
    tokens = len(logits)
    return sorted(
        (
            (float(logits[i, 0]) + float(logits[j, 1]), i, j)
            for i in range(before, tokens - after)
            for j in range(i, min(i + max_tokens, tokens - after))
        ),
        reverse=True,
    )


@pytest.mark.parametrize("seed", range(5))
def test_best_span_is_the_brute_force_best(seed):
    logits = np.random.default_rng(seed).normal(size=(40, 2)).astype(np.float32)
    score, first, last = brute(logits, 1, 2, 8)[0]
    best, *span = best_spans(logits, before=1, after=2, max_tokens=8)[0]
    assert span == [first, last]
    assert best == pytest.approx(score)


def test_more_spans_are_the_best_that_do_not_overlap():
    logits = np.random.default_rng(9).normal(size=(30, 2)).astype(np.float32)
    expected: list[tuple[int, int]] = []
    for _, i, j in brute(logits, 0, 1, 6):
        if all(j < a or i > b for a, b in expected):
            expected.append((i, j))
    got = [tuple(span) for _, *span in best_spans(logits, before=0, after=1, k=4, max_tokens=6)]
    assert got == expected[:4]


def test_special_tokens_are_never_part_of_an_answer():
    logits = np.zeros((10, 2), np.float32)
    logits[0] = logits[-1] = 100
    for _, first, last in best_spans(logits, before=1, after=1, k=3):
        assert 1 <= first <= last <= 8


def test_a_passage_without_tokens_has_no_answer():
    assert best_spans(np.zeros((1, 2), np.float32), before=0, after=1) == []


def test_all_windows_at_once_equal_one_by_one():
    draw = np.random.default_rng(3)
    lengths = np.array([12, 3, 40, 2])
    logits = Ragged(draw.normal(size=(lengths.sum(), 2)).astype(np.float32), lengths)
    best, total, null = window_scores(logits, before=0, after=1, max_tokens=7)
    for number in range(len(lengths)):
        rows = logits[number]
        spans = brute(rows[1:], 0, 1, 7)
        values = np.array([s[0] for s in spans])
        assert null[number] == pytest.approx(float(rows[0].sum()), rel=1e-6)
        if len(values):
            assert best[number] == pytest.approx(values[0], rel=1e-6)
            assert total[number] == pytest.approx(np.log(np.exp(values).sum()), rel=1e-6)
        else:
            assert best[number] == total[number] == -np.inf


def test_of_spans_that_windows_of_a_passage_share_the_best_stays(model):
    """Two windows, `a b c d` and `c d e f`: both see `c d`, the first one better."""
    spec = model("bert", "span").spec
    after = len(spec.text.passage_suffix)
    offsets = np.array([[0, 1], [2, 3], [4, 5], [6, 7], *[[0, 0]] * after], np.int64)
    texts = [
        Excerpt(id="p", window=n, start=4 * n, text="abcdef"[2 * n : 2 * n + 4], offsets=offsets)
        for n in (0, 1)
    ]
    texts = [replace(one, text=" ".join(one.text)) for one in texts]
    logits = np.full((2, 5 + after, 2), -9.0, np.float32)  # no answer, then the tokens
    logits[0, 3, 0] = logits[0, 4, 1] = 5
    logits[1, 1, 0] = logits[1, 2, 1] = 3
    logits[1, 3, 0] = logits[1, 4, 1] = 1
    search = SearchRun(Request(query="q", head="span", k=2, part=True))
    lengths = np.full(2, 5 + after)
    search.windows = Windows(
        states=States(np.zeros((2 * (4 + after), 1), np.float32), lengths - 1),
        texts=tuple(texts),
        owners=(0, 0),
    )
    query = States(np.zeros((3, 1), np.float32), np.array([3]))
    search.encoding = Encoding(states=query, vectors=np.zeros((1, 0), np.float32))
    search.logits = {"span": Ragged(logits.reshape(-1, 2), lengths)}
    found = [(answer.text, answer.offset, answer.score) for answer in outcome(spec, search)]
    assert found[:2] == [("c d", 0, 10.0), ("e f", 4, 2.0)]
    assert [score for *_, score in found] == sorted((score for *_, score in found), reverse=True)
    search.request = replace(search.request, query="How many are there?")
    best = outcome(spec, search)[0]
    assert (best.text, best.score) == ("c d", 10.0 + UNFIT)


@pytest.mark.parametrize(
    "weights, shown", [((0.6, 0.3, 0.09), 3), ((0.9, 0.01, 0.001), 2), ((5e-5, 4e-5, 1e-9), 2)]
)
def test_answers_that_are_faint_beside_the_best_are_not_shown(model, weights, shown):
    passage = {"passage_id": "p", "passage": "one two three", "start": 0, "end": 3}
    texts = zip(weights, ("one", "two", "three"), strict=True)
    found = tuple(Answer(**passage, text=text, score=float(np.log(w))) for w, text in texts)
    asked = Request(query="which?", head="span", k=3, retrieve=True)
    weighed = Answers(query=asked.query, items=found, weight=0.0)
    likely = likely_answers(model("bert", "span").spec, asked, weighed)
    assert [a.text for a in likely] == ["one", "two", "three"][:shown]
    assert not likely_answers(model("bert", "span").spec, asked, replace(weighed, items=()))
