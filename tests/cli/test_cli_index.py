"""The commands of an index: made, changed, asked and measured. Mostly in this process, a few real ones."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from commands import Commands, Done, jsonl
from decoupled.cli import printing
from decoupled.index import ingest
from decoupled.index.index import Index
from decoupled.measure.table import fact
from decoupled.model.folder import write_scoring
from decoupled.model.model import Model
from decoupled.model.scoring import AnswerPlatt, Scoring
from decoupled.search.engine import Engine

TIMES = ["retrieve_ms", "fetch_ms", "encode_ms", "cross_ms", "total_ms"]
TEXTS = [
    "Bram Stoker wrote the novel of the count in the old house.",
    "The river floods the town in spring.",
    "A castle on the hill was built by the king.",
    "The ship crossed the sea in winter.",
    "A train runs from the town to the coast.",
    "The moon is a stone and the sun is a star.",
]
ROWS = [
    {"id": f"p{n}", "text": text, "meta": {"n": n, "even": n % 2 == 0}}
    for n, text in enumerate(TEXTS)
]


@pytest.fixture
def cli(monkeypatch, capsys):
    return Commands(monkeypatch, capsys)


def process(*words: object, stdin: str | None = None) -> Done:
    """A real process."""
    command = [sys.executable, "-m", "decoupled", *map(str, words)]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    """A tiny model with rank and span heads, split at 2, on disk."""
    path = tmp_path_factory.mktemp("model") / "m"
    rank = model("bert", "rank").spec.head("rank")
    Model.split(model("bert", "span").with_heads(rank, seed=1), at=2).save(path)
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return jsonl(tmp_path_factory.mktemp("corpus") / "docs.jsonl", ROWS)


@pytest.fixture(scope="module")
def built(folder, corpus, tmp_path_factory) -> Path:
    """An index that a real process made; read only."""
    path = tmp_path_factory.mktemp("built") / "docs.idx"
    done = process("index", corpus, "-o", path, "--model", folder, "--codec", "fp16", "--json")
    found = done.json
    assert (found["added"], found["passages"], found["skipped"]) == (6, 6, 0)
    assert f"{path}: 6 passages; 6 added" in done.err
    return path


@pytest.fixture
def index(built, tmp_path) -> Path:
    """A copy to change."""
    return shutil.copytree(built, tmp_path / "docs.idx")


# Reading ------------------------------------------------------------------------------------------


def test_search_prints_the_documented_object(cli, built):
    words = ("search", built, "who wrote the novel", "-k", 3, "--first-stage", "dense", "--json")
    done = cli(*words)
    found = done.json
    assert [*found] == ["query", "hits", "timing"] and [*found["timing"]] == TIMES
    assert found["query"] == "who wrote the novel" and len(found["hits"]) == 3
    for hit in found["hits"]:
        assert {"id", "score", "text", "title", "meta"} <= hit.keys()
        assert hit["text"] == TEXTS[int(hit["id"][1:])] and 0 <= hit["score"] <= 1
        assert hit["meta"]["n"] == int(hit["id"][1:])
    scores = [hit["score"] for hit in found["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert done.err == ""
    raw = cli(*words, "--raw").json
    assert [h["id"] for h in raw["hits"]] == [h["id"] for h in found["hits"]]
    assert [h["score"] for h in raw["hits"]] != scores


def test_ask_prints_exact_spans(cli, built):
    found = cli("ask", built, "where is the castle", "-k", 2, "--json").json
    assert [*found] == ["question", "answers", "timing", "rejected"]
    assert [*found["timing"]] == TIMES
    assert (
        1 <= len(found["answers"]) <= 2
    )  # fillers, of which an untrained model finds many, are left out
    for answer in found["answers"]:
        assert {"text", "score", "start", "end", "passage_id", "passage"} <= answer.keys()
        assert answer["passage"][answer["start"] : answer["end"]] == answer["text"]
    none = cli("ask", built, "where is the castle", "--threshold", 1, "--json").json
    assert none["answers"] == [] and [a["text"] for a in none["rejected"]][
        : len(found["answers"])
    ] == [a["text"] for a in found["answers"]]


def test_what_is_asked_first_is_compiled_before(cli, built, monkeypatch):
    run, seen = Engine.run, []
    monkeypatch.setattr(Engine, "run", lambda self, asked: seen.extend(asked) or run(self, asked))
    for command in ("search", "ask"):
        cli(command, built, "the river")
        warm, asked = seen[-2:]
        # The query's vector, the store and the head are used by both.
        assert warm.query != asked.query == "the river"
        assert (warm.retrieve, warm.head) == (asked.retrieve, asked.head) and warm.candidates == 1


def test_tables_are_for_people_and_times_go_to_stderr(cli, built):
    done = cli("search", built, "the river")
    assert "river floods" in done.out and "ms:" in done.err and "ms:" not in done.out
    asked = cli("ask", built, "the river", "--threshold", 1)
    assert asked.code == 0 and "no answer found: the best guess" in asked.err


@pytest.mark.parametrize("end", ["exit", "quit", None])
def test_questions_are_typed_one_after_the_other(cli, built, monkeypatch, tmp_path, end):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    lines = iter(["where is the river", "  ", "the castle", *([end, "never"] if end else [])])

    def typed(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    done = cli("ask", built, "--json", "--threshold", 0)
    first, second = map(json.loads, done.out.splitlines())
    assert first["question"] == "where is the river" and second["question"] == "the castle"
    assert "Ctrl-D ends" in done.err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    assert "no query for" in cli("ask", built).failure
    assert "is an index" in cli("rerank", "the river", built).err


def test_the_first_stage_is_shown_beside(cli, built):
    words = ("search", built, "the river", "--first-stage", "hybrid", "-k", 3)
    assert "first_stage" not in cli(*words, "--json").json["hits"][0]
    hits = cli(*words, "--show-first-stage", "--json").json["hits"]
    for hit in hits:
        assert hit["first_stage"]["hybrid"]["rank"] >= 1
        assert set(hit["first_stage"]) <= {"lexical", "dense", "hybrid"}
    alone = cli(*words[:3], "--first-stage", "lexical", "--show-first-stage", "--json").json["hits"]
    ranks = {hit["id"]: hit["first_stage"]["lexical"]["rank"] for hit in alone}
    assert sorted(ranks.values()) == [*range(1, len(alone) + 1)]
    both = [hit for hit in hits if "lexical" in hit["first_stage"]]
    assert both and all(h["first_stage"]["lexical"]["rank"] == ranks[h["id"]] for h in both)
    shown = cli(*words, "--show-first-stage").out
    assert f"first stage: lexical {ranks[both[0]['id']]} (" in shown and ", hybrid " in shown


def test_an_answer_is_marked_in_its_passage_with_its_document(cli, index, tmp_path, monkeypatch):
    meta = {"document": "guide/fog.html", "start": 40, "end": 62}
    row = {
        "id": "guide/fog.html#fog/1",
        "title": "Guide › Fog",
        "text": "a lantern in the fog",
        "meta": meta,
    }
    cli("add", index, jsonl(tmp_path / "more.jsonl", [row]))
    where = ("--where", '{"document": "guide/fog.html"}', "-k", 1)
    answer = cli("ask", index, "lantern", *where, "--json").json["answers"][0]
    assert (answer["title"], answer["meta"]) == ("Guide › Fog", meta) and answer["evidence"]
    shown = cli("ask", index, "lantern", *where).out
    place = f"characters {40 + answer['start']}–{40 + answer['end']}"
    assert f"guide/fog.html · Guide › Fog · {place}" in shown
    assert "guide/fog.html · Guide › Fog" in cli("search", index, "lantern", *where).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert f"\x1b[1;7m{answer['text']}\x1b[0m" in cli("ask", index, "lantern", *where).out


def test_a_table_shows_no_control_characters(cli, index, tmp_path):
    rows = [{"id": "esc\x1b[2J", "text": "a lantern \x1b]0;renamed\x07 \x9b31m \r\n in the fog"}]
    cli("add", index, jsonl(tmp_path / "more.jsonl", rows))
    found = cli("search", index, "lantern in the fog", "--first-stage", "lexical", "-k", 1)
    assert "lantern" in found.out and "esc\ufffd[2J" in found.out
    assert not set(found.out) & set("\x1b\x07\x9b\r")


def test_names_of_files_keep_to_their_line(cli, folder, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a\nb\x1b[31m.txt").write_text("a lantern in the fog")
    (docs / "c\nd\x1b[31m.pdf").write_text("no such thing")
    built = cli("index", docs, "--model", folder, "-o", tmp_path / "i")
    assert "skipped " in built.err and "c d\ufffd[31m.pdf: is not a whole PDF" in built.err
    found = cli("search", tmp_path / "i", "lantern")
    assert "a b\ufffd[31m.txt" in found.out and "\x1b" not in found.out + built.err
    assert "nowhere\ufffd[2J" in cli("search", "nowhere\x1b[2J", "lantern").failure


def test_a_table_grows_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    printing.table(("score", "answer"), iter([(0.5, "one"), (0.25, "two")]))
    grown = capsys.readouterr().out
    assert "\x1b[?25l" in grown and grown.rindex("0.5000") < grown.rindex("0.2500")
    printing.table(("score", "answer"), [(0.5, "one")])
    assert "\x1b[?25l" not in capsys.readouterr().out


def test_a_query_that_is_cut_is_told(cli, built, folder, corpus):
    room = Model.load(folder).tokenizer.query_room
    for words in (("search", built), ("ask", built), ("rerank", "--model", folder)):
        rest = (corpus,) if words[0] == "rerank" else ()
        fits = cli(*words, " ".join(["river"] * room), *rest)
        assert fits.code == 0 and "warning" not in fits.err
        told = cli(*words, " ".join(["river"] * (room + 1)), *rest)
        assert f"warning: a query of {room + 1} tokens is read up to its first {room}" in told.err


def test_nothing_found_is_said(cli, built, folder, tmp_path):
    found = cli("search", built, "the river", "--where", '{"n": 77}')
    assert (found.code, found.out, found.err) == (0, "", "nothing found\n")
    empty = tmp_path / "empty.idx"
    Index.create(empty, folder).close()
    for command in ("search", "ask"):
        said = cli(command, empty, "the river").err
        assert said == f"{empty} holds no passages; add some with: decoupled add {empty} CORPUS\n"


def test_a_batch_prints_one_object_a_line_in_order(cli, built, tmp_path):
    queries = ["the river", "the castle", "who wrote the novel", "the river"]
    batch = jsonl(tmp_path / "q.jsonl", [{"query": query} for query in queries])
    lines = [json.loads(x) for x in cli("search", built, "--batch", batch).out.splitlines()]
    assert [line["query"] for line in lines] == queries
    alone = cli("search", built, "the castle", "--json").json
    assert [h["id"] for h in lines[1]["hits"]] == [h["id"] for h in alone["hits"]]
    asked = [json.loads(x) for x in cli("ask", built, "--batch", batch, "-k", 1).out.splitlines()]
    assert [line["question"] for line in asked] == queries
    assert {len(line["answers"]) for line in asked} <= {0, 1}


def test_a_batch_shows_a_bar_where_its_lines_are_not_seen(cli, built, tmp_path, monkeypatch):
    (batch := tmp_path / "q.txt").write_text("the river\nthe castle\n")
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = cli("search", built, "--batch", batch)
    assert "queries" in done.err and "100%" in done.err and "\x1b" not in done.out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli("search", built, "--batch", batch).err == ""


def test_blend_and_threshold(cli, folder, corpus, tmp_path):
    model, index = shutil.copytree(folder, tmp_path / "m"), tmp_path / "i"
    answer = AnswerPlatt(share=1.0, weight=0.0, offset=0.0)
    write_scoring(model, Scoring(bm25=2.0, answer=answer, no_answer=1.0))
    assert cli("index", corpus, "-o", index, "--model", model).code == 0
    words = ("search", index, "the town", "--raw", "--first-stage", "dense", "--json")
    once, none = (
        {hit["id"]: hit["score"] for hit in cli(*words, *more).json["hits"]}
        for more in ((), ("--blend", 0))
    )
    assert once.keys() == none.keys() and once != pytest.approx(none, abs=0.1)
    asked = ("ask", index, "the town")
    assert cli(*asked, "--json", "--threshold", 0).json["answers"]
    assert cli(*asked, "--json").json["answers"] == [], "the model's own threshold is the default"
    assert (
        "--threshold is 'high'; give a score such as 0.5"
        in cli(*asked, "--threshold", "high").failure
    )


def test_filters_and_first_stages(cli, built):
    for stage in ("lexical", "dense", "hybrid", "auto"):
        words = ("search", built, "the town", "--first-stage", stage, "--json")
        found = cli(*words, "--where", '{"n": {"gte": 1, "lt": 5}, "even": false}').json
        assert {hit["meta"]["n"] for hit in found["hits"]} <= {1, 3}
        assert found["hits"], stage
    few = cli("search", built, "the town", "--candidates", 2, "--json").json
    assert len(few["hits"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "; write it after the index, or give --batch FILE"),
        ((" ",), "the query is empty; write what to look for"),
        (("\u200b\ufeff",), "the query is empty; write what to look for"),
        (("q", "--batch", "f.jsonl"), "a query and --batch f.jsonl are given; leave out one"),
        (
            ("q", "--first-stage", "magic"),
            "--first-stage is 'magic'; choose lexical, dense, hybrid or auto",
        ),
        (("q", "--where", "{"), "--where is not JSON"),
        (("q", "--where", "[1]"), "--where is '[1]'; write an object"),
        (("--batch", "NONE.jsonl"), "NONE.jsonl does not exist; check the path"),
    ],
)
def test_bad_questions_fail_in_one_line(cli, built, words, message):
    for command in ("search", "ask"):
        assert message in cli(command, built, *words).failure


def test_usage_errors_exit_with_2(cli, built):
    assert cli("search").code == 2 and cli("index", "x").code == 2
    assert cli("search", built, "q", "-k", 0).code == 2


def test_info_of_an_index(cli, built):
    facts = cli("info", built, "--json").json
    assert {"passages", "bytes", "model", "codec", "version"} <= facts.keys()
    assert (facts["passages"], facts["codec"], facts["kind"]) == (6, "fp16", "index")
    on_disk = sum(f.stat().st_size for f in built.rglob("*") if f.is_file())
    assert facts["bytes"] == on_disk and "split 2 of 3" in facts["model"]
    table = cli("info", built)
    assert "passages" in table.out and table.err == ""
    assert re.search(r"^keep tokens +1 *$", table.out, re.M)
    assert fact({"lost": 1 / 3, "of": 12345}) == "lost 0.3333, of 12,345"


# Writing ------------------------------------------------------------------------------------------


def test_the_same_build_again_adds_nothing(cli, index, corpus, folder):
    done = cli("index", corpus, "-o", index, "--model", folder, "--json").json
    assert (done["added"], done["unchanged"], done["passages"]) == (0, 6, 6)


def test_add_delete_compact(cli, index, tmp_path):
    more = jsonl(tmp_path / "more.jsonl", [{"id": "p1", "text": "new"}, {"id": "x", "text": "y"}])
    done = cli("add", index, more, "--json").json
    assert (done["added"], done["replaced"], done["passages"]) == (2, 1, 7)
    deleted = cli("delete", index, "p0", "p2", "nobody", "--json")
    assert deleted.json == {"deleted": 2} and "deleted 2 of 3 passages" in deleted.err
    compacted = cli("compact", index, "--json").json
    assert compacted["bytes"] == cli("info", index, "--json").json["bytes"]
    hits = cli("search", index, "the town", "-k", 20, "--first-stage", "dense", "--json").json
    assert {hit["id"] for hit in hits["hits"]} == {"p1", "p3", "p4", "p5", "x"}
    assert next(hit["text"] for hit in hits["hits"] if hit["id"] == "p1") == "new"


def test_passages_from_stdin_and_folders(folder, tmp_path, cli):
    lines = "".join(json.dumps(row) + "\n" for row in ROWS[:2])
    path = tmp_path / "in.idx"
    done = process("index", "-", "-o", path, "--model", folder, "--json", stdin=lines)
    assert done.json["added"] == 2
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "one.md").write_text("# A river\n\nIt floods the town.\n")
    (notes / "two.txt").write_text("A castle.")
    assert cli("add", path, notes, "--json").json["passages"] > 2


def test_duplicates_are_reported(cli, index, tmp_path):
    rows = [{"id": "a", "text": "first"}, {"id": "b", "text": "x"}, {"id": "a", "text": "last"}]
    done = cli("add", index, jsonl(tmp_path / "twice.jsonl", rows), "--json")
    assert done.json["duplicates"] == ["a"]
    assert "warning: ids that came twice, the last one stays: a" in done.err


def test_a_broken_line_stops_or_is_skipped(cli, folder, tmp_path):
    data = jsonl(tmp_path / "docs.jsonl", ROWS[:3])
    data.write_text(data.read_text() + "{broken\n" + json.dumps(ROWS[3]) + "\n")
    words = ("index", data, "-o", tmp_path / "i", "--model", folder)
    stopped = cli(*words, "--on-error", "stop").failure
    assert f"{data}:4: is not one JSON object on one line" in stopped
    assert "--on-error skip" in stopped
    done = cli(*words, "--json")
    assert (done.json["passages"], done.json["skipped"]) == (4, 1)
    assert done.json["problems"][0].startswith(f"{data}:4: is not one JSON object")
    assert f"skipped {data}:4:" in done.err
    assert "--on-error is 'no'; choose stop or skip" in cli(*words, "--on-error", "no").failure


def test_random_bytes_are_a_failure_in_one_line(cli, folder, tmp_path):
    draw = random.Random(0)
    for name in ("noise.jsonl", "noise.csv", "noise.json", "noise.jsonl.gz", "noise.jsonl.xz"):
        data = tmp_path / name
        data.write_bytes(draw.randbytes(4096))
        out = tmp_path / f"{name}.idx"
        line = cli("index", data, "-o", out, "--model", folder, "--on-error", "stop").failure
        assert str(data) in line
        line = cli("index", data, "-o", out, "--model", folder).failure
        assert line.startswith(f"error: {data}") and "to index; mend that, or name" in line
        assert not out.exists()
    real = process("index", tmp_path / "noise.jsonl", "-o", tmp_path / "r.idx", "--model", folder)
    assert str(tmp_path / "noise.jsonl") in real.failure


def test_a_corpus_of_the_wrong_form_leaves_nothing_behind(cli, folder, corpus, tmp_path):
    out = tmp_path / "o"
    words = ("-o", out, "--model", folder)
    (table := tmp_path / "table.csv").write_text("a,b\n1,2\n")
    assert "has no text: expected a field" in cli("index", table, *words).failure
    (nothing := tmp_path / "empty.jsonl").write_text("")
    assert f"no passages in {nothing}, so there is nothing" in cli("index", nothing, *words).failure
    (folder_of := tmp_path / "programs").mkdir()
    (folder_of / "a.bin").write_bytes(b"\0\1")
    line = cli("index", folder_of, *words).failure
    assert "a.bin: the ending .bin is not known" in line and "--as-text" in line
    assert "--on-error is 'no'" in cli("index", corpus, *words, "--on-error", "no").failure
    assert not out.exists()
    # So that the mended command is not taken for another corpus in the same index.
    assert cli("index", corpus, *words, "--json").json["added"] == 6
    assert cli("add", out, nothing, "--json").json["added"] == 0


def test_ctrl_c_says_what_is_stored_and_how_to_go_on(cli, index, tmp_path, monkeypatch):
    more = jsonl(tmp_path / "more.jsonl", [{"id": f"n{n}", "text": "a ship"} for n in range(600)])
    encode, parts = Index._encode, []

    def interrupted(self, passages):
        parts.append(passages)
        if len(parts) == 2:
            raise KeyboardInterrupt
        return encode(self, passages)

    monkeypatch.setattr(Index, "_encode", interrupted)
    monkeypatch.setattr(ingest, "PART", 512)
    stopped = cli("add", index, more).failure
    assert f"stopped: 518 passages are stored in {index}; run the same command to go on" in stopped
    monkeypatch.undo()
    assert len(Index.open(index)) == 518


def test_a_second_writer_is_refused_and_readers_are_not(cli, index, corpus):
    with Index.open(index, write=True):
        refused = process("add", index, corpus)
        assert f"{index} is being written by process {os.getpid()}; wait for it" in refused.failure
        assert cli("search", index, "the river", "--json").json["hits"]
    assert cli("add", index, corpus, "--json").json["unchanged"] == 6


def test_what_cannot_be_indexed_is_explained(cli, built, corpus, folder, checkpoint, tmp_path):
    out = tmp_path / "o"
    assert "NONE does not exist" in cli("index", "NONE", "-o", out, "--model", folder).failure
    assert "nothing to store; split it first" in (
        cli("index", corpus, "-o", out, "--model", checkpoint("bert", "rank")).failure
    )
    assert "codec" in cli("index", corpus, "-o", out, "--model", folder, "--codec", "zip").failure
    assert f"{built} is an index, not a model; its model is {built / 'model'}" in (
        cli("index", corpus, "-o", out, "--model", built).failure
    )
    assert not out.exists()
    other = tmp_path / "other"
    Model.split(checkpoint("bert", "rank"), at=1).save(other)
    assert "was made by a model with fingerprint" in (
        cli("index", corpus, "-o", built, "--model", other).failure
    )
    for words in (("search", out, "q"), ("ask", out, "q"), ("delete", out, "x"), ("compact", out)):
        assert "does not exist, so it is not an index" in cli(*words).failure


# Measuring ----------------------------------------------------------------------------------------


@pytest.fixture
def judged(tmp_path) -> Path:
    """A BEIR folder: each query's passage shares its words."""
    folder = tmp_path / "beir"
    folder.mkdir()
    jsonl(folder / "corpus.jsonl", [{"_id": r["id"], "text": r["text"]} for r in ROWS])
    queries = [("q3", "unjudged"), ("q1", "the river floods"), ("q2", "castle of the king")]
    jsonl(folder / "queries.jsonl", [{"_id": name, "text": text} for name, text in queries])
    (folder / "qrels").mkdir()
    head = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "test.tsv").write_text(f"{head}q1\tp1\t1\nq2\tp2\t2\n")
    (folder / "qrels" / "train.tsv").write_text(f"{head}q3\tp0\t1\n")
    return folder


def test_retrieval_is_measured_before_and_after_reranking(cli, judged, folder, built):
    words = ("evaluate", "--task", "retrieval", "--data", judged)
    found = cli(*words, "--model", folder, "--json").json
    assert found["task"] == "retrieval"
    stages = {stage["first_stage"]: stage for stage in found["stages"]}
    assert [*stages] == ["lexical", "dense", "hybrid"]
    lexical = stages["lexical"]
    assert lexical["queries"] == 2 and lexical["recall@100"] == 1
    assert lexical["before"] == {"ndcg@10": 1, "mrr@10": 1}
    assert all(0 < stage["after"]["mrr@10"] <= 1 for stage in stages.values())
    few = cli(*words, "--index", built, "--candidates", 1, "--json").json["stages"]
    assert [stage["recall@100"] for stage in few] == [s["recall@100"] for s in stages.values()]
    given = cli(*words, "--index", built, "--limit", 1, "--json").json
    assert given["stages"][0]["queries"] == 1
    assert "recall@100" in cli(*words, "--index", built).out.replace("\n", "")


def test_a_broken_corpus_is_not_measured_in_silence(cli, judged, folder):
    with (judged / "corpus.jsonl").open("a") as corpus:
        corpus.write("{broken\n")
    words = ("evaluate", "--task", "retrieval", "--data", judged, "--model", folder, "--json")
    assert f"{judged / 'corpus.jsonl'}:7: is not one JSON object" in cli(*words).failure
    done = cli(*words, "--on-error", "skip")
    assert done.json["stages"] and f"skipped {judged / 'corpus.jsonl'}:7:" in done.err


def test_a_folder_without_judgments_is_explained(cli, judged, built, corpus):
    words = ("evaluate", "--task", "retrieval", "--index", built, "--data")
    assert "is a file; retrieval takes a folder in BEIR's layout" in cli(*words, corpus).failure
    (judged / "qrels" / "test.tsv").rename(judged / "qrels" / "dev.tsv")
    assert "holds several sets of judgments and none is test" in cli(*words, judged).failure
    shutil.rmtree(judged / "qrels")
    assert "has no qrels.tsv; expected corpus.jsonl, queries.jsonl and" in (
        cli(*words, judged).failure
    )


def test_another_corpus_or_codec_is_not_mixed_in_by_accident(cli, folder, corpus, tmp_path):
    path = tmp_path / "docs.idx"
    first = cli("index", corpus, "-o", path, "--model", folder, "--codec", "fp16", "--json").json
    assert first["added"] == 6
    other = jsonl(tmp_path / "more.jsonl", [{"id": "new", "text": "Another passage."}])
    refused = cli("index", other, "-o", path)
    assert refused.code == 1 and refused.out == ""
    assert f"was built from {corpus}, not from {other}; add to it with append" in refused.err
    wrong = cli("index", corpus, "-o", path, "--codec", "int8")
    assert wrong.code == 1 and "stores states as fp16, not int8; leave out codec" in wrong.err
    again = cli("index", corpus, "-o", path, "--json").json
    assert (again["added"], again["unchanged"]) == (0, 6)
    more = cli("index", other, "-o", path, "--append", "--json").json
    assert (more["added"], more["passages"]) == (1, 7)


def test_progress_is_told_without_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(printing, "EVERY", 0.0)
    with printing.progress_bar("queries") as bar:
        bar.reach(3, 10)
    assert capsys.readouterr().err == "queries: 3 of 10\n"


def test_a_changed_document_is_replaced_and_sync_removes_what_left(cli, folder, tmp_path):
    docs, out = tmp_path / "docs", tmp_path / "i"
    docs.mkdir()
    long = "The river runs past the town. " * 12
    (docs / "a.md").write_text(f"# A\n\n{long}\n\n# B\n\n{long}\n\n# C\n\n{long}\n")
    (docs / "b.md").write_text("short")
    words = ("index", docs, "-o", out, "--model", folder, "--chunk", "40", "--json")
    first = cli(*words).json
    with Index.open(out) as index:
        ids = {e.id for e in index.store.snapshot.scan()}
    assert {"b.md", "a.md#a/1", "a.md#b/1", "a.md#c/1"} <= ids and first["removed"] == 0
    (docs / "a.md").write_text(f"# A\n\n{long}\n\n# C\n\n{long}\n")
    (docs / "b.md").unlink()
    second = cli(*words).json
    parts = len([i for i in ids if i.startswith("a.md#b/")])
    assert (second["removed"], second["passages"]) == (parts, first["passages"] - parts)
    third = cli(*words, "--sync").json
    assert (third["removed"], third["added"]) == (1, 0)
    (docs / "bad.html").write_text("<p>good once")
    cli(*words)
    (docs / "bad.html").write_bytes(bytes(range(256)))
    (docs / "a.md").unlink()
    (docs / "c.md").write_text("new")
    fourth = cli(*words, "--sync").json
    assert fourth["removed"] == third["passages"] and fourth["files"] == {"read": 1, "skipped": 1}
    with Index.open(out) as index:
        assert {e.id for e in index.store.snapshot.scan()} == {"c.md", "bad.html"}
    (docs / "rows.jsonl").write_text("{broken")
    (docs / "c.md").unlink()
    fifth = cli(*words, "--sync")
    assert (
        fifth.json["removed"] == 0 and "--sync removed no passages that may be theirs" in fifth.err
    )


def test_a_cut_record_counts_as_its_document(cli, folder, tmp_path):
    judged = tmp_path / "beir"
    (judged / "qrels").mkdir(parents=True)
    long = " ".join(f"The count wrote novel number {n}." for n in range(60))
    rows = [{"_id": "d1", "text": long}, {"_id": "d2", "text": "floods in spring"}]
    jsonl(judged / "corpus.jsonl", rows)
    jsonl(judged / "queries.jsonl", [{"_id": "q", "text": "which novel the count wrote"}])
    (judged / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td1\t1\n")
    words = ("evaluate", "--task", "retrieval", "--data", judged, "--model", folder, "--json")
    stages = {s["first_stage"]: s for s in cli(*words).json["stages"]}
    assert stages["lexical"]["recall@100"] == 1.0 and stages["lexical"]["before"]["mrr@10"] == 1.0
