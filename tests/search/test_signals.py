"""What a sample of an index tells of all of it, and what a search makes of that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decoupled.index.index import Index
from decoupled.index.store.base import Share
from decoupled.model.model import Model
from decoupled.model.scoring import Scoring
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine
from decoupled.search.first_stage import standardised
from decoupled.search.request import Request
from decoupled.search.signals import Sample, hubness
from decoupled.train.reshape import with_late, with_vector
from toy import PLACES

COMMON, RARE = PLACES[0], PLACES[1]


@pytest.fixture(scope="module")
def engine(model, tmp_path_factory):
    """Passages that all share a word, two of them a rare one; the model has a vector and late interaction."""
    split = Model.split(model("bert", "rank"), at=2)
    made = with_late(with_vector(split, 8), 4)
    draw, folder = np.random.default_rng(0), tmp_path_factory.mktemp("sample") / "i"
    words = [" ".join(draw.choice(PLACES[2:], 6)) for _ in range(40)]
    with Index.create(folder, made, codec="fp32") as index:
        index.add(
            Passage(id=f"p{n}", text=f"{COMMON} {text}{f' {RARE}' if n < 2 else ''}")
            for n, text in enumerate(words)
        )
    return Engine(folder, cascade="all")


@pytest.fixture
def heard(engine):
    """What a search adds to the logits of its hits with a scoring, by id."""
    index = engine.index
    before = index.spec

    def added(scoring, query, **how):
        index.spec = replace(before, scoring=scoring)
        hits = engine.search(query, k=40, candidates=40, raw=True, **how)
        alone = engine.search(query, k=40, candidates=40, raw=True, blend=0.0, **how)
        logits = {hit.id: hit.score for hit in alone}
        return {hit.id: hit.score - logits[hit.id] for hit in hits}

    yield added
    index.spec = before


def test_crowding_is_the_mean_cosine_with_the_nearest(engine, monkeypatch):
    monkeypatch.setattr("decoupled.search.signals.NEAREST", 3)
    snapshot = engine.index.refresh()
    rows = snapshot.rows()
    places = snapshot.vectors(rows).astype(np.float64)
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    cosines = places @ places.T
    np.fill_diagonal(cosines, -1)
    expected = np.sort(cosines, axis=1)[:, -3:].mean(1)
    found = hubness(rows, snapshot.vectors(rows), Sample(snapshot))
    assert found == pytest.approx(expected, abs=1e-6)
    monkeypatch.setattr("decoupled.search.signals.SIZE", 10)
    assert len(Sample(snapshot).rows) == 10 and set(Sample(snapshot).rows) <= set(rows)


def test_a_sample_is_read_once_for_each_version(engine):
    sample = Sample(engine.index.refresh())
    assert sample.of(engine.index.refresh()) is sample


def test_what_stands_in_a_crowd_sinks(engine, heard):
    added = heard(Scoring(bm25=1e-9, crowding=0.5), COMMON)
    snapshot = engine.index.refresh()
    rows = snapshot.locate(list(added))
    crowded = hubness(rows, snapshot.vectors(rows), Sample(snapshot))
    expected = -0.5 * standardised(crowded)
    assert list(added.values()) == pytest.approx(expected.tolist(), abs=1e-4)


def test_late_interaction_counts_and_is_computed_once(engine, heard, monkeypatch):
    from decoupled.search.late_interaction import LateInteraction

    scores, asked = LateInteraction.scores, []
    monkeypatch.setattr(
        LateInteraction, "scores", lambda self, *a: asked.append(self) or scores(self, *a)
    )
    added = np.array(list(heard(Scoring(bm25=1e-9, late=0.7), RARE).values()))
    assert len(asked) == 1 and added.std() == pytest.approx(0.7, abs=1e-4)
    monkeypatch.setattr(engine, "cascade", LateInteraction.of(engine.runtime, 0.5))
    asked.clear()
    engine.index.spec = replace(engine.index.spec, scoring=Scoring(bm25=1e-9, late=0.7))
    engine.search(RARE, k=3, candidates=40)
    assert len(asked) == 1, "what is read is chosen by the same scores"


@pytest.mark.parametrize("share", [None, Share(number=1, count=2)])
def test_states_are_read_once_however_many_want_them(engine, share, monkeypatch):
    index = Index.open(engine.index.path, share=share)
    index.spec = replace(index.spec, scoring=Scoring(bm25=1e-9, late=0.7))
    snapshot, read = type(index.refresh()), []
    states = snapshot.states
    monkeypatch.setattr(
        snapshot, "states", lambda self, rows: read.append(rows) or states(self, rows)
    )
    (search,) = Engine(index, cascade="all").score(
        [Request(query=RARE, head="rank", k=3, retrieve=True, candidates=40)]
    )
    assert [len(rows) for rows in read] == [40]
    windows = search.windows
    assert len(windows) == 40 if share is None else 0 < len(windows) < 40
    assert (windows.states.values == index.refresh().states(windows.rows).values).all()
