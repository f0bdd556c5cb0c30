"""What is learnt about scores: the best weights of made-up lists, and a whole fit of a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from added_parts import with_late, with_vector

from decoupled.errors import InputError
from decoupled.measure.info import info
from decoupled.measure.pairs import Pair, Span
from decoupled.methods.reading import MOST
from decoupled.methods.scores.answers import ReadQuestion, _no_answer
from decoupled.methods.scores.fields import Field, field_of, with_absent
from decoupled.methods.scores.scoring import (
    RankedQuery,
    choose_blend,
    choose_fusion,
    fit_scoring,
)
from decoupled.model.folder import read_spec
from decoupled.model.model import Model
from decoupled.model.scoring import Scoring
from decoupled.search.engine import Engine
from decoupled.search.results import Answer, Answers
from toy import span_pairs

A = Field(name="a", passages=(), queries=(), qrels={})


def made(draw, *, cosine: float, bm25: float, logits: float, count: int = 40) -> list[RankedQuery]:
    """Queries with one relevant of 30 candidates, which each score knows as well as its number says."""
    queries = []
    for _ in range(count):
        grades = np.zeros(30, np.int64)
        grades[draw.integers(30)] = 1
        noise = draw.normal(size=(3, 30))
        scores = noise + np.array([[cosine], [bm25], [logits]]) * grades
        queries.append(
            RankedQuery(
                cosine=scores[0],
                bm25=scores[1],
                logits=3 * scores[2],
                grades=grades,
                all_grades=[1],
                dense=np.argsort(-scores[0]),
                lexical=np.argsort(-scores[1]),
            )
        )
    return queries


def test_fusion_weighs_the_better_search_more():
    draw = np.random.default_rng(0)
    lexical, _ = choose_fusion([made(draw, cosine=1, bm25=4, logits=0)], ["a"])
    dense, figures = choose_fusion([made(draw, cosine=4, bm25=1, logits=0)], ["a"])
    assert dense < 1 < lexical
    assert figures["a"]["hybrid"] >= figures["a"]["part"]


def test_a_blend_takes_what_the_first_stage_knows_and_is_calibrated():
    draw = np.random.default_rng(1)
    knows, _ = choose_blend([made(draw, cosine=2, bm25=2, logits=2)], [A], Scoring())
    useless, _ = choose_blend([made(draw, cosine=0, bm25=0, logits=4)], [A], Scoring())
    assert knows.cosine > 1 and knows.bm25 > 1
    assert useless.cosine + useless.bm25 < (knows.cosine + knows.bm25) / 2
    _, figures = choose_blend([made(draw, cosine=2, bm25=2, logits=2, count=400)], [A], Scoring())
    assert figures["a"]["blend"] > figures["a"]["rank"] + 0.1 and figures["error"] < 0.02
    both = [made(draw, cosine=0, bm25=0, logits=4), made(draw, cosine=3, bm25=3, logits=1)]
    plain, _ = choose_blend(both, [A, replace(A, seen=True)], Scoring())
    more, _ = choose_blend(both, [replace(A, seen=True), A], Scoring())
    assert more.cosine + more.bm25 > 2 * (plain.cosine + plain.bm25)


def test_no_answer_is_given_below_the_score_that_serves_both_kinds_best():
    def found(score: float | None) -> Answers:
        place = {"passage_id": "p", "passage": "x", "start": 0, "end": 1}
        one = () if score is None else (Answer(text="x", score=score, **place),)
        return Answers(query="q", items=one)

    asked = [ReadQuestion(search=None, golds=g) for g in (("x",), ("x",), (), (), ())]
    answers = [found(0.9), found(0.4), found(0.5), found(0.3), found(None)]
    right = np.array([1.0, 1.0, 0.0, 0.0, 0.0])
    assert _no_answer(asked, answers, lambda *given: right) == 0.4
    assert _no_answer(asked[:2], answers[:2], lambda *given: right[:2]) is None
    # Where nothing was found, nothing is said, whatever the threshold above 0.
    useless, nothing = [found(0.2), found(0.9), found(None)], np.zeros(3)
    assert _no_answer(asked[1:4], useless, lambda *given: nothing) == 0.2


def test_pairs_make_a_field():
    pairs = [
        Pair(query="q1", passage="a"),
        Pair(query="q1", passage="b", label=0),
        Pair(query="q2", passage="a", label=1),
    ]
    field = field_of("toy", pairs)
    assert [p.text for p in field.passages] == ["a", "b"] and not field.pairs
    assert field.qrels == {"0": {"0": 1}, "1": {"0": 1}}
    asked = [*span_pairs(3), Pair(query="nobody", passage="an empty street")]
    field = field_of("toy", asked)
    assert len(field.pairs) == 4 and "nobody" not in {q.text for q in field.queries}


def test_half_of_the_answering_passages_are_taken_out():
    pairs = [
        Pair(query="q0", passage="a x", answers=(Span(text="x", start=2),)),
        Pair(query="q1", passage="b x", answers=(Span(text="x", start=2),)),
        Pair(query="q2", passage="c x", answers=(Span(text="x", start=2),)),
        Pair(query="q2", passage="b x", answers=(Span(text="x", start=2),)),
        Pair(query="q3", passage="d x"),
    ]
    field = with_absent(field_of("toy", pairs))
    assert [p.text for p in field.passages] == ["a x", "c x", "d x"]
    assert [pair.query for pair in field.pairs] == ["q0", "q2", "q3"]
    # The passage of q2 that is left answers it, so only q1 has no answer now.
    assert [pair.query for pair in field.absent] == ["q1"]
    assert [q.text for q in field.queries] == ["q0", "q2"] and len(field.qrels) == 2
    ranked = field_of("ranked", [Pair(query="q", passage="a"), Pair(query="q", passage="b")])
    left = with_absent(ranked)
    assert left.passages == ranked.passages and left.qrels == ranked.qrels and not left.absent


def test_a_model_learns_its_scores_and_keeps_them(model, tmp_path):
    rank = model("bert", "rank").spec.head("rank")
    both = with_vector(Model.split(model("bert", "span").with_heads(rank, seed=1), at=2), 8)
    both = with_late(both, 4)
    both.save(tmp_path / "m")
    pairs = span_pairs(40)
    nothing = [Pair(query="comet", passage=p.passage) for p in pairs[:10]]
    told: list[tuple[int, int | None]] = []
    fitted = fit_scoring(
        tmp_path / "m",
        [field_of("toy", [*pairs[:28], *nothing]), field_of("other", pairs[28:])],
        limit=24,
        candidates=12,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1][0] == told[-1][1]
    learnt = read_spec(tmp_path / "m").scoring
    assert learnt == fitted.scoring and learnt.fusion and learnt.answer and learnt.answer_given
    assert learnt.answer != learnt.answer_given, "a passage that was found, and one that was given"
    assert learnt.no_answer_given is not None
    assert learnt.no_answer != Scoring().no_answer, "learnt from questions without an answer"
    means = fitted.figures["answers"]["open_f1"]
    good = [float(r) for r, mean in means.items() if mean >= max(means.values()) - 0.005]
    assert learnt.answer_rank == pytest.approx(np.mean(good))
    assert json.loads(json.dumps(fitted.to_json()))["blend"]["toy"].keys() == {"rank", "blend"}
    late = read_spec(tmp_path / "m").late
    assert late == fitted.late and 0 < late.keep <= 1 and late.slope
    assert late.loss.ndcg <= MOST.ndcg and late.loss.f1 <= MOST.f1
    told = info(tmp_path / "m")["reads"]
    assert told == {"share": late.keep, "ndcg_loss": late.loss.ndcg, "f1_loss": late.loss.f1}
    assert Model.load(tmp_path / "m").fingerprint == both.fingerprint
    engine = Engine(tmp_path / "m")
    texts = [p.passage for p in pairs[:3]]
    (score, *_), (logit, *_) = (
        [h.score for h in engine.rerank("river", texts=texts, raw=raw)] for raw in (False, True)
    )
    assert score == pytest.approx(float(learnt.rank(np.float64(logit))), abs=1e-5)
    with pytest.raises(InputError, match="no data"):
        fit_scoring(tmp_path / "m", [])
