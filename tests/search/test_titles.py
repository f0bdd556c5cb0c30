"""Titles are read with their passages: by every stage, and never as part of an answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decoupled.index import manifest
from decoupled.index.index import Index
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine

TEXTS = [
    "it runs past the town",
    "he wrote the novel",
    "the house of the count",
    "floods in spring",
]
TITLES = ["river › town", "Dracula", "", "novel count house of the river town " * 6]
GIVEN = [Passage(id=f"p{n}", text=t, title=TITLES[n]) for n, t in enumerate(TEXTS)]
QUERY = "which river runs past the town"


@pytest.fixture(scope="module")
def both(model):
    rank = model("bert", "rank").spec.head("rank")
    return Model.split(model("bert", "span").with_heads(rank, seed=1), at=2)


@pytest.fixture
def index(both, tmp_path):
    with Index.create(tmp_path / "i", both, codec="fp32") as made:
        made.add(GIVEN)
        yield made


def test_a_title_stands_before_every_window_and_has_no_place_in_the_text(both):
    tokenizer = both.tokenizer
    plain = tokenizer.windows(TEXTS)
    titled = tokenizer.windows(TEXTS, TITLES)
    room, prefix = tokenizer.title_room, len(tokenizer.spec.passage_prefix)
    shown = tokenizer.lengths([f"{title}." for title in TITLES])
    counts = [min(n, room) if t else 0 for n, t in zip(shown, TITLES, strict=True)]
    assert counts[2] == 0 and shown[3] > counts[3] == room
    for (old,), (new,), count in zip(plain, titled, counts, strict=True):
        assert new.text == old.text and len(new.ids) == len(old.ids) + count
        np.testing.assert_array_equal(new.ids[prefix + count :], old.ids[prefix:])
        assert not new.offsets[: prefix + count].any()
        np.testing.assert_array_equal(new.offsets[prefix + count :], old.offsets[prefix:])
    long, end = tokenizer.windows([TEXTS[0] * 40], ["Dracula"])[0], prefix + counts[1]
    assert len(long) > 1 and max(len(w.ids) for w in long) <= tokenizer.spec.passage_tokens
    assert all((w.ids[:end] == titled[1][0].ids[:end]).all() for w in long)


def test_scores_and_vectors_depend_on_the_title(both, index):
    titled = [hit.score for hit in Engine(both).rerank(QUERY, texts=GIVEN, raw=True)]
    stored = [
        hit.score for hit in Engine(index).rerank(QUERY, ids=["p0", "p1", "p2", "p3"], raw=True)
    ]
    plain = [hit.score for hit in Engine(both).rerank(QUERY, texts=TEXTS, raw=True)]
    np.testing.assert_allclose(titled, stored, atol=1e-5)
    assert np.abs(np.subtract(titled, plain)).max() > 1e-3


def test_answers_are_exact_substrings_and_never_of_the_title(both, index):
    for engine, given in (
        (Engine(index), {"ids": [p.id for p in GIVEN]}),
        (Engine(both), {"texts": GIVEN}),
    ):
        answers = engine.ask(QUERY, k=20, threshold=0.0, **given)
        assert answers
        for answer in answers:
            assert answer.passage[answer.start : answer.end] == answer.text
            assert answer.passage == TEXTS[int(answer.passage_id[1:])]


def test_an_index_from_before_titles_were_read_goes_on_without(both, tmp_path, monkeypatch):
    new = manifest.new_manifest
    old = lambda *given: replace(new(*given), titles=False)  # noqa: E731
    monkeypatch.setattr("decoupled.index.index.new_manifest", old)
    with Index.create(tmp_path / "old", both, codec="fp32") as index:
        index.add(GIVEN)
        engine = Engine(index)
        stored = {h.id: h.score for h in engine.rerank(QUERY, ids=["p0", "p1"], raw=True)}
        given = {h.id: h.score for h in engine.rerank(QUERY, texts=GIVEN[:2], raw=True)}
        plain = {h.text: h.score for h in Engine(both).rerank(QUERY, texts=TEXTS[:2], raw=True)}
    assert stored == pytest.approx(given, abs=1e-5)
    assert sorted(stored.values()) == pytest.approx(sorted(plain.values()), abs=1e-5)
