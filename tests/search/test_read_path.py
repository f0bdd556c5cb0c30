"""Parts of the read path by hand: the cache of texts, overlaps of answers, and what is printed."""

from __future__ import annotations

import numpy as np
import pytest

from decoupled.index.index import Index
from decoupled.model.model import Model
from decoupled.model.states import Encoding, Ragged, States
from decoupled.model.tokens import Passage, Window
from decoupled.search.answers import best_spans, window_scores
from decoupled.search.engine import Engine
from decoupled.search.fetch import EncodedText, TextCache
from decoupled.search.late_interaction import LateInteraction, open_late_interaction
from decoupled.search.request import Request, SearchRun, Windows
from decoupled.search.results import Label, Timing
from decoupled.search.starter import sample_pairs, sample_passages, sample_questions


def encoded(tokens: int, text: str = "abc") -> EncodedText:
    window = Window(
        ids=np.zeros(tokens, np.int32), offsets=np.zeros((tokens, 2), np.int32), text=text, start=0
    )
    return EncodedText((window,), States(np.zeros((tokens, 4), np.float32), np.array([tokens])))


def test_a_text_counts_what_it_holds():
    small, large = encoded(2), encoded(2, text="a" * 1003)
    assert large.size - small.size == 1000
    assert encoded(12).size - encoded(2).size == 10 * (4 + 8 + 16)
    assert small.size > 2 * (4 + 8 + 16) + 12, "and something for the objects themselves"


def test_tokens_are_those_of_each_window_and_of_the_query_beside_it():
    search = SearchRun(Request(query="q", head="rank"))
    search.windows = Windows(states=States(np.zeros((5, 4), np.float32), np.array([2, 3])))
    query = States(np.zeros((7, 4), np.float32), np.array([7]))
    search.encoding = Encoding(query, np.zeros((1, 0), np.float32))
    assert search.tokens == 2 + 3 + 2 * 7


def test_the_cache_of_texts_holds_its_limit_and_drops_the_oldest():
    size = encoded(10).size
    cache = TextCache(4 * size)
    for name in "abcd":
        cache.put(name, encoded(10))
    assert cache.bytes == cache.limit and cache.get("a") is not None, "full is not too full"
    cache.put("e", encoded(10))
    assert cache.get("b") is None and cache.get("a") is not None and cache.bytes == 4 * size
    cache.put("a", encoded(5))
    assert cache.bytes == 3 * size + encoded(5).size, "replaced, not added"
    cache.put("huge", encoded(1000))
    assert cache.get("huge") is None and (cache.hits, cache.misses) == (2, 2)


def test_a_reopened_engine_remembers_as_much(model, tmp_path):
    with Index.create(
        tmp_path / "i", Model.split(model("bert", "rank"), at=1), codec="fp32"
    ) as made:
        made.add([Passage(id="p", text="the river")])
    for limit in (0, 1 << 20):
        engine = Engine(tmp_path / "i", remember=limit)
        fresh = engine.reopened()
        assert (fresh.text_cache.limit if fresh.text_cache is not None else 0) == limit


def test_spans_that_begin_before_a_better_one_do_not_reach_into_it():
    logits = np.full((6, 2), -9.0, np.float32)
    logits[2], logits[0, 0], logits[0, 1] = (5, 5), 4, 3  # token 2 alone; token 0 alone
    found = best_spans(logits, before=0, after=0, k=6, max_tokens=3)
    assert found[0][1:] == (2, 2) and found[1][1:] == (0, 0)
    assert all(not (first <= 2 <= last) for _, first, last in found[1:])


def test_a_window_of_very_low_logits_still_has_a_weight():
    logits = Ragged(np.full((4, 2), -2e30, np.float32), np.array([4]))
    best, total, _ = window_scores(logits, before=0, after=0)
    assert best[0] == pytest.approx(-4e30) and not np.isnan(total[0])


def test_late_interaction_is_opened_where_it_is_asked_for():
    ready = LateInteraction(keep=0.5)
    assert open_late_interaction(ready, None) is ready and open_late_interaction(None, None) is None


def test_what_is_printed_of_labels_and_times():
    label = Label(label="yes", score=0.75, scores={"yes": 0.75, "no": 0.25})
    assert label.to_json() == {"label": "yes", "score": 0.75, "scores": {"yes": 0.75, "no": 0.25}}
    assert Timing(cross_ms=1.23456).to_json()["cross_ms"] == 1.235


def test_a_model_is_calibrated_on_every_sample_passage():
    pairs = sample_pairs()
    assert [text for _, text in pairs] == [p.text for p in sample_passages()]
    assert {question for question, _ in pairs} == {s.question for s in sample_questions()}
