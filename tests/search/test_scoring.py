"""What a model learnt about its scores: the first stage's part in them, and what they mean."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from added_parts import with_vector

from decoupled.errors import InputError, SpecError
from decoupled.index.index import Index
from decoupled.model.folder import read_spec
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.model import Model
from decoupled.model.scoring import AnswerPlatt, Platt, Scoring, sigmoid
from decoupled.model.spec import ModelSpec
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine
from decoupled.search.first_stage import standardised
from toy import PLACES

SCORING = Scoring(
    cosine=0.7,
    bm25=1.3,
    fusion=0.5,
    search=Platt(slope=0.8, offset=-1.0),
    rank=Platt(slope=2.0, offset=0.5),
    answer=AnswerPlatt(share=0.9, weight=0.4, offset=-0.2),
    answer_given=AnswerPlatt(share=0.5, weight=0.1, offset=0.3),
    no_answer=0.4,
)
QUERY = "river castle moon"


def scored(model: Model, scoring: Scoring | None) -> Model:
    model.net.spec = replace(model.spec, scoring=scoring)
    return model


@pytest.fixture(scope="module")
def engines(model, tmp_path_factory):
    """The same passages and weights without and with what was learnt about the scores."""
    rank = model("bert", "rank").spec.head("rank")
    both = with_vector(Model.split(model("bert", "span").with_heads(rank, seed=1), at=2), 8)
    draw, made = np.random.default_rng(0), []
    texts = [" ".join(draw.choice(PLACES, 6)) for _ in range(40)]
    for name, scoring in (("plain", None), ("learnt", SCORING)):
        folder = tmp_path_factory.mktemp(name) / "i"
        with Index.create(folder, scored(both, scoring), codec="fp32") as index:
            index.add(Passage(id=f"p{n}", text=text) for n, text in enumerate(texts))
        made.append(Engine(folder))
    return made


def by_id(hits) -> dict[str, float]:
    return {hit.id: hit.score for hit in hits}


def first_stage_scores(engine, stage, found):
    """Scores of the first stage by id, 0 for what it cannot find, as `found` has them."""
    snapshot = engine.index.refresh()
    vector = engine.runtime.encode("query", [engine.runtime.tokenizer.query(QUERY)]).vectors[0]
    exact = {
        "rows": np.sort(snapshot.rows())
    }  # of named rows the store compares what it holds, unrounded
    ranked = (
        snapshot.lexical(QUERY, 99) if stage == "lexical" else snapshot.dense(vector, 99, **exact)
    )
    named = {e.id: s for e, s in zip(snapshot.texts(ranked.rows), ranked.scores, strict=True)}
    return np.array([named.get(i, 0.0) for i in found], np.float64)


@pytest.mark.parametrize("stage", ["lexical", "dense", "hybrid"])
def test_a_search_adds_both_scores_of_the_first_stage_to_the_logit(engines, stage):
    plain, learnt = engines
    assert learnt.spec.scoring == SCORING and plain.spec.scoring is None
    hits = by_id(learnt.search(QUERY, k=12, candidates=12, first_stage=stage, raw=True))
    assert len(hits) == 12
    logits = by_id(learnt.rerank(QUERY, ids=list(hits), raw=True))
    expected = np.array([logits[i] for i in hits])
    expected += 0.7 * standardised(first_stage_scores(learnt, "dense", hits))
    expected += 1.3 * standardised(first_stage_scores(learnt, "lexical", hits))
    assert list(hits.values()) == pytest.approx(expected.tolist(), abs=1e-4)
    assert list(hits.values()) == sorted(hits.values(), reverse=True)


def test_without_a_blend_it_is_the_rank_logit(engines):
    plain, learnt = engines
    how = {"k": 12, "candidates": 12, "first_stage": "lexical"}
    alone = learnt.search(QUERY, **how, blend=0.0, raw=True)
    assert by_id(alone) == pytest.approx(by_id(plain.search(QUERY, **how, raw=True)), abs=1e-5)
    twice = by_id(learnt.search(QUERY, **how, blend=2.0, raw=True))
    once, none = by_id(learnt.search(QUERY, **how, raw=True)), by_id(alone)
    for i in none:
        assert twice[i] - none[i] == pytest.approx(2 * (once[i] - none[i]), abs=1e-4)
    with pytest.raises(InputError, match="blend=-1"):
        learnt.search(QUERY, blend=-1.0)


def test_scores_are_calibrated_and_keep_the_order(engines):
    _, learnt = engines
    for how, platt in (({}, SCORING.search), ({"blend": 0.0}, SCORING.rank)):
        raw, shown = (learnt.search(QUERY, **how, raw=r) for r in (True, False))
        assert [h.id for h in raw] == [h.id for h in shown]
        values = np.array([h.score for h in raw])
        expected = sigmoid(platt.slope * values + platt.offset)
        assert [h.score for h in shown] == pytest.approx(expected.tolist(), abs=1e-6)
    texts = ["river and castle", "moon"]
    logit = np.array([h.score for h in learnt.rerank(QUERY, texts=texts, raw=True)])
    given = [h.score for h in learnt.rerank(QUERY, texts=texts)]
    assert given == pytest.approx(sigmoid(2 * logit + 0.5).tolist(), abs=1e-6)


def test_hybrid_is_the_weighted_sum_over_both_lists(engines):
    _, learnt = engines
    lists = [
        [p.id for p in learnt.candidates(QUERY, 8, first_stage=stage)]
        for stage in ("lexical", "dense")
    ]
    union = list(dict.fromkeys(lists[0] + lists[1]))
    assert len(union) > 8
    sums = standardised(first_stage_scores(learnt, "dense", union))
    sums += 0.5 * standardised(first_stage_scores(learnt, "lexical", union))
    expected = [union[n] for n in np.argsort(-sums)[:8]]
    assert [p.id for p in learnt.candidates(QUERY, 8, first_stage="hybrid")] == expected


def test_an_answer_scores_its_chance_and_no_answer_is_a_choice(engines):
    learnt = engines[1]
    shares, chances = (engine.ask(QUERY, k=5, threshold=0) for engine in engines)
    assert [a.text for a in shares] == [a.text for a in chances] and len(shares) == 5
    weight = shares.weight
    for share, chance in zip(shares, chances, strict=True):
        value = 0.9 * np.log(share.score) + 0.4 * weight - 0.2
        assert chance.score == pytest.approx(float(sigmoid(np.float64(value))), abs=1e-5)
    given = [engine.ask(QUERY, 1, texts=["river and castle"], threshold=0) for engine in engines]
    value = 0.5 * np.log(given[0][0].score) + 0.1 * given[0].weight + 0.3
    assert given[1][0].score == pytest.approx(float(sigmoid(np.float64(value))), abs=1e-5)
    silent = learnt.ask(QUERY, k=5)
    assert [a.text for a in silent] == [a.text for a in chances if a.score >= 0.4]
    assert [a.text for a in silent.rejected] == [a.text for a in chances if a.score < 0.4]
    assert silent.rejected and silent.to_json()["rejected"][0]["text"] == silent.rejected[0].text
    assert not chances.rejected
    # A model that never learnt when to be silent answers every question, as it always did.
    assert [a.text for a in engines[0].ask(QUERY, k=5)] == [a.text for a in shares]
    assert replace(SCORING, no_answer=0.5).answer_threshold(passages_given=False) is None


@pytest.mark.parametrize("least, some", [(None, False), (0.0, True), (1.0, False)])
def test_no_answer_in_a_given_passage_has_its_own_score(model, least, some):
    split = Model.split(model("bert", "span"), at=2)
    scoring = Scoring(
        answer_given=SCORING.answer_given, no_answer=1.0 - (least or 0.0), no_answer_given=least
    )
    engine = Engine(scored(split, scoring))
    found = engine.ask(QUERY, 1, texts=["river and castle"], threshold="auto")
    assert bool(found) is some


def test_signals_of_the_first_version_are_read_and_not_used():
    saved = to_json(Scoring(bm25=0.5))
    assert from_json(Scoring, {**saved, "neighbours": 0.2, "late": 0.6}) == Scoring(bm25=0.5)
    with pytest.raises(SpecError, match="unknown fields others"):
        from_json(Scoring, {**saved, "others": 0.2})


def test_it_is_saved_with_the_model_and_leaves_fingerprints_alone(engines):
    plain, learnt = engines
    marks = [engine.index.manifest.fingerprint for engine in engines]
    assert marks[0] == marks[1]
    written = to_json(learnt.spec)
    assert from_json(ModelSpec, json.loads(json.dumps(written))) == learnt.spec
    assert "scoring" not in to_json(plain.spec)
    assert read_spec(learnt.index.path / "model").scoring == SCORING


def test_another_model_of_the_weights_must_learn_its_own(model):
    split = scored(Model.split(model("bert", "rank"), at=2), SCORING)
    assert Model.split(split, at=1).spec.scoring is None
