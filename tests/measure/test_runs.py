"""Runs of TREC and first stages elsewhere: written, reranked from stored passages, scored as others score."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import decoupled as dc
from commands import Commands, jsonl
from decoupled.errors import InputError
from decoupled.measure.metrics import mrr, ndcg, recall
from decoupled.measure.retrieval import judgments
from decoupled.measure.runs import read_run, run_lines, score_run
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from tiny import WORDS

QUERIES = [
    {"_id": "1", "text": "the river and the town"},
    {"_id": "2", "text": "a castle on the hill"},
]


def made_of(number: int, size: int) -> str:
    return " ".join(random.Random(number).choices(WORDS, k=size))


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    """A tiny model that ranks, split at 2."""
    path = tmp_path_factory.mktemp("model") / "m"
    Model.split(model("bert", "rank"), at=2).save(path)
    return path


@pytest.fixture(scope="module")
def index(folder, tmp_path_factory) -> Path:
    """Thirty passages; two of them are windows of one document that was cut."""
    path = tmp_path_factory.mktemp("index") / "i"
    passages = [Passage(id=f"p{n}", text=made_of(n, 12)) for n in range(30)]
    for n in (1, 2):
        meta = {"document": "long", "start": n}
        passages.append(Passage(id=f"long#{n}", text=made_of(90 + n, 12), meta=meta))
    with dc.Index.create(path, folder, codec="fp32") as made:
        made.add(passages)
    return path


@pytest.fixture
def cli(monkeypatch, capsys):
    return Commands(monkeypatch, capsys)


def scores(hits):
    return {hit.id: pytest.approx(hit.score, abs=1e-6) for hit in hits}


def test_a_search_elsewhere_takes_the_place_of_the_first_stage(index):
    own = dc.Engine(index)
    expected = own.search("the river", k=8, candidates=12, raw=True)
    ids = [passage.id for passage in own.candidates("the river", 12)]
    asked = []

    def elsewhere(query, count):
        asked.append((query, count))
        return ids

    engine = dc.Engine(index, first_stage=elsewhere)
    found = engine.search("the river", k=8, candidates=12, raw=True)
    assert asked == [("the river", 12)]
    assert {hit.id: hit.score for hit in found} == scores(expected) and not found.notes
    assert [p.id for p in engine.candidates("the river", 5)] == ids[:5], "no more than asked for"
    assert [p.id for p in engine.reopened().candidates("the river", 3)] == ids[:3]
    lexical = engine.search("the river", first_stage="lexical", raw=True)
    assert {h.id: h.score for h in lexical} == scores(
        own.search("the river", first_stage="lexical", raw=True)
    )
    dense = dc.Engine(index, first_stage="lexical").search("the river", raw=True)
    assert {hit.id: hit.score for hit in dense} == scores(lexical), "a name is a default, too"


def test_scores_documents_and_ids_that_are_not_there(index):
    def elsewhere(query, count):
        return iter([("p3", 9.5), ("gone", 7.0), ("long", 5.0), ("p3", 1.0), ("x", 0.5)])

    engine = dc.Engine(index, first_stage=elsewhere)
    found = engine.search("a castle", show_first_stage=True)
    stages = {hit.id: hit.first_stage["outside"] for hit in found}
    assert stages == {
        "p3": {"rank": 1, "score": 9.5},
        "long#1": {"rank": 2, "score": 5.0},
        "long#2": {"rank": 3, "score": 5.0},
    }, "a document gives all of its passages"
    assert found.notes == ("ids that the index does not have: gone, x",)
    many = engine.search("a castle", first_stage=lambda *_: [f"g{n}" for n in range(25)])
    assert not len(many) and many.notes[0].endswith("g19 and 5 more")
    assert not len(engine.search("a castle", first_stage=lambda *_: []))
    with pytest.raises(InputError, match="filter in the one you gave"):
        engine.search("a castle", where={"n": 1})
    with pytest.raises(InputError, match=r"the first stage gave \(3, 0\.5\); expected an id"):
        engine.search("a castle", first_stage=lambda *_: [(3, 0.5)])


def test_a_run_is_written_reranked_and_scored_by_the_commands(cli, index, tmp_path):
    queries = jsonl(tmp_path / "queries.jsonl", QUERIES)
    words = ("search", index, "--batch", queries, "-k", 9, "--candidates", 20)
    rows = [json.loads(line) for line in cli(*words).out.splitlines()]
    written = cli(*words, "--format", "trec")
    assert written.code == 0, written.err
    lines = [line.split() for line in written.out.splitlines()]
    assert {line[0] for line in lines} == {"1", "2"} and {len(line) for line in lines} == {6}
    assert [line[3] for line in lines if line[0] == "1"][:3] == ["1", "2", "3"]
    run = tmp_path / "own.run"
    run.write_text(written.out)
    for number, row in zip("12", rows, strict=True):
        ids = dict.fromkeys(hit["id"].partition("#")[0] for hit in row["hits"])
        assert read_run(run)[number] == list(ids), "documents, each once"
    again = cli("rerank", index, "--run", run, "--queries", queries)
    assert again.code == 0, again.err
    assert {q: set(ids) for q, ids in read_run(run).items()} == {
        q: set(ids) for q, ids in read_run(put(tmp_path, again.out)).items()
    }
    (tmp_path / "qrels.txt").write_text("1 0 p3 2\n1 0 p4 0\n2 0 long 1\n3 0 p1 0\n")
    scored = cli("evaluate", "--run", run, "--qrels", tmp_path / "qrels.txt", "--json").json
    assert scored == score_run(read_run(run), judgments(tmp_path / "qrels.txt"))
    assert scored["queries"] == 2 and set(scored) == {"queries", "ndcg@10", "mrr@10", "recall@100"}


def put(folder: Path, text: str) -> Path:
    path = folder / "put.run"
    path.write_text(text)
    return path


def test_another_systems_run_may_name_what_is_not_there(cli, index, tmp_path):
    queries = jsonl(tmp_path / "queries.jsonl", QUERIES)
    run = put(tmp_path, "2 Q0 p4 1 3.5 bm25\n2 Q0 stale 2 2.5 bm25\n2 Q0 p5 3 1.5 bm25\n")
    done = cli("rerank", index, "--run", run, "--queries", queries, "-k", 1)
    assert done.code == 0 and len(done.out.splitlines()) == 1 and done.out.startswith("2 Q0 p")
    assert done.err == "warning: ids that the index does not have: stale\n"
    (row,) = cli("rerank", index, "--run", run, "--queries", queries, "--json").out.splitlines()
    row = json.loads(row)
    assert row["notes"] == ["ids that the index does not have: stale"] and len(row["hits"]) == 2
    run = put(tmp_path, "7 Q0 p4 1 3.5 bm25\n")
    assert (
        "query '7', which has no text"
        in cli("rerank", index, "--run", run, "--queries", queries).failure
    )
    assert "belong together" in cli("rerank", index, "--run", run).failure
    assert "give them by --batch" in cli("search", index, "q", "--format", "trec").failure
    assert (
        "--format is 'xml'; choose json or trec"
        in cli("search", index, "--batch", queries, "--format", "xml").failure
    )


def test_ids_of_a_search_elsewhere_are_reranked(cli, index, tmp_path):
    one, two = tmp_path / "bm25.txt", tmp_path / "vectors.txt"
    one.write_text("p1\np2\nlost\n")
    two.write_text("p2\nlong\n")
    done = cli("rerank", index, "the river", "--ids", one, "--ids", two, "--json").json
    assert {hit["id"] for hit in done["hits"]} == {"p1", "p2", "long#1", "long#2"}
    assert done["notes"] == ["ids that the index does not have: lost"]
    assert [hit["score"] for hit in done["hits"]] == sorted(
        (hit["score"] for hit in done["hits"]), reverse=True
    )
    table = cli("rerank", index, "the river", "--ids", one, "-k", 1)
    assert table.code == 0 and "lost" in table.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 Q0 p1 1 0.5", "put.run:1: is '1 Q0 p1 1 0.5'; expected six columns"),
        ("1 Q0 p1 1 nan x", "expected six columns: query-id Q0 id rank score name"),
        ("1 Q0 p1 1 high x", "put.run:1: is '1 Q0 p1 1 high x'; expected six"),
    ],
)
def test_what_is_no_run(tmp_path, line, message):
    with pytest.raises(InputError) as error:
        read_run(put(tmp_path, line))
    assert message in str(error.value)


def test_runs_of_odd_ids_and_equal_scores(tmp_path):
    run = put(tmp_path, "q\tQ0\ta\t1\t2.0\tx\nq Q0 b 2 2.0 x\n\nq Q0 c 3 3 x\nq Q0 a 4 1 x\n")
    assert read_run(run) == {"q": ["c", "b", "a"]}, "as trec_eval: of equal scores the last name"
    hits = dc.Hits(query="q", items=(dc.Hit(id="my file.txt", score=1.0, text=""),))
    with pytest.raises(InputError, match=r"'q' finds 'my file\.txt'; in a run, ids have no spaces"):
        list(run_lines("q", hits))
    with pytest.raises(InputError, match="do the ids agree"):
        score_run({"q": ["a"]}, {"other": {"a": 1}})


def drawn(seed: int) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """Random judgments and a random run, of which each lacks queries of the other."""
    draw = random.Random(seed)
    docs = [f"d{n}" for n in range(200)]
    qrels = {f"q{n}": {d: draw.randrange(-1, 4) for d in draw.sample(docs, 60)} for n in range(30)}
    qrels = {q: {**grades, "sure": 1} for q, grades in qrels.items()}
    run = {q: {d: draw.random() for d in draw.sample([*docs, "sure"], 130)} for q in qrels}
    run.pop("q3")
    return qrels, run


def ours(qrels, run) -> dict[str, float]:
    ranked = {q: sorted(each, key=each.__getitem__, reverse=True) for q, each in run.items()}
    at = {f"nDCG@{k}": ndcg(ranked, qrels, k) for k in (5, 10)}
    return {**at, "RR@10": mrr(ranked, qrels, 10), "R@100": recall(ranked, qrels, 100)}


@pytest.mark.parametrize("seed", range(5))
def test_metrics_are_those_of_ir_measures(seed):
    ir_measures = pytest.importorskip("ir_measures")
    qrels, run = drawn(seed)
    names = {name: ir_measures.parse_measure(name) for name in ours(qrels, run)}
    theirs = ir_measures.calc_aggregate(list(names.values()), qrels, run)
    expected = {name: theirs[measure] for name, measure in names.items()}
    assert ours(qrels, run) == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow  # it compiles for half a minute
def test_metrics_are_those_of_ranx():
    ranx = pytest.importorskip("ranx")
    names = {"nDCG@5": "ndcg@5", "nDCG@10": "ndcg@10", "RR@10": "mrr@10", "R@100": "recall@100"}
    for seed in range(5):
        qrels, run = drawn(seed)
        qrels = {q: {d: grade for d, grade in g.items() if grade > 0} for q, g in qrels.items()}
        theirs = ranx.evaluate(
            ranx.Qrels(qrels), ranx.Run(run), list(names.values()), make_comparable=True
        )
        expected = {name: float(theirs[named]) for name, named in names.items()}
        assert ours(qrels, run) == pytest.approx(expected, abs=1e-9)
