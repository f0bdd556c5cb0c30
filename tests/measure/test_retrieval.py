"""Judged queries and the scores of first stages, with an engine that finds what the test says."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from decoupled.errors import InputError
from decoupled.measure.pairs import Query
from decoupled.measure.retrieval import judged_queries, stage_scores


class Engine:
    """Finds p0, p1, … in order; its cross component turns them round."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def candidates(self, query, count, *, first_stage):
        self.asked.append(count)
        return [SimpleNamespace(id=f"p{n // 2}", meta={}) for n in range(2 * count)]

    def search(self, query, k, *, first_stage, candidates):
        return [SimpleNamespace(id=f"p{n}", meta={}) for n in reversed(range(candidates))][:k]


QUERIES = [Query(id=i, text=i) for i in ("a", "b", "c")]


def test_a_stage_is_scored_before_and_after():
    engine = Engine()
    qrels = {"a": {"p0": 1}, "b": {"p19": 1, "p90": 1}, "c": {"p0": 0}}
    ticks = []
    (found,) = stage_scores(
        engine,
        QUERIES,
        qrels,
        stages=["dense"],
        candidates=20,
        progress=lambda *told: ticks.append(told),
    )
    assert (found.first_stage, found.queries) == ("dense", 2)
    assert found.recall_at_100 == pytest.approx((1 + 1) / 2), "looked for among 100, not among 20"
    assert found.before["mrr@10"] == pytest.approx(0.5)
    assert found.after["mrr@10"] == pytest.approx(0.5) and found.to_json()["recall@100"] == 1.0
    assert sorted(set(engine.asked)) == [20, 100] and len(ticks) >= 2
    engine.asked.clear()
    stage_scores(engine, QUERIES, qrels, stages=["dense"])
    assert set(engine.asked) == {100} and len(engine.asked) == 2, "once where that is enough"
    with pytest.raises(InputError, match="no query has a relevant passage"):
        stage_scores(engine, QUERIES, {"a": {"p0": 0}})


def test_only_judged_queries_are_asked(tmp_path):
    rows = [{"_id": name, "text": f"query {name}"} for name in "abcd"]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    with pytest.raises(InputError, match=r"has no qrels\.tsv"):
        judged_queries(tmp_path, None)
    (tmp_path / "qrels").mkdir()
    head = "query-id\tcorpus-id\tscore\n"
    (tmp_path / "qrels" / "test.tsv").write_text(head + "b\tx\t1\nd\ty\t2\nc\tz\t1\n")
    queries, qrels = judged_queries(tmp_path, None)
    assert [q.id for q in queries] == ["b", "c", "d"] and qrels["d"] == {"y": 2}
    assert [q.id for q in judged_queries(tmp_path, 2)[0]] == ["b", "c"]
    (tmp_path / "qrels" / "dev.tsv").write_text(head + "a\tx\t1\n")
    assert [q.id for q in judged_queries(tmp_path, None)[0]] == ["b", "c", "d"], "test counts"
    (tmp_path / "qrels" / "test.tsv").rename(tmp_path / "qrels" / "train.tsv")
    with pytest.raises(InputError, match="holds several sets of judgments and none is test"):
        judged_queries(tmp_path, None)
    alone, none = judged_queries(tmp_path / "queries.jsonl", 3)
    assert len(alone) == 3 and none is None
    with pytest.raises(InputError, match="does not exist"):
        judged_queries(tmp_path / "nowhere", None)
