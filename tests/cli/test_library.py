"""Every command is a function of the library, which gives what the command prints."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import decoupled as dc
from commands import Commands, jsonl
from decoupled.cli import GROUPS, PANELS, RARE
from decoupled.errors import OptionError
from decoupled.measure.certify import certify
from decoupled.serve.mcp.server import serve_stdio
from decoupled.train.push import push
from tiny import WORDS

METHODS = {
    "add": dc.Index.add,
    "ask": dc.Engine.ask,
    "certify": certify,
    "classify": dc.Engine.classify,
    "compact": dc.Index.compact,
    "delete": dc.Index.delete,
    "index": dc.build_index,
    "mcp": serve_stdio,
    "push": push,
    "rerank": dc.Engine.rerank,
    "search": dc.Engine.search,
    "serve": dc.serve_index,
    "split": dc.Model.split,
}
"""Commands whose function has another name: a method, or one that a package of the library has taken."""
TIMES = re.compile(r'"(seconds|rates|plan|latency_ms|timing|command)": (\{[^{}]*\}|"[^"]*"|[\d.]+)')


def plain(value: object) -> object:
    """As JSON, without times and without what was typed."""
    return json.loads(TIMES.sub(r'"\1": 0', json.dumps(value)))


@pytest.fixture
def cli(monkeypatch, capsys):
    return Commands(monkeypatch, capsys)


@pytest.fixture
def place(tmp_path, model) -> SimpleNamespace:
    """A tiny model, judged pairs, passages, and judged queries over them, on disk."""
    dc.Model.split(model("bert", "rank"), at=2).save(tmp_path / "m")
    texts = [" ".join((*WORDS[3 * n : 3 * n + 5], WORDS[-n - 1])) for n in range(20)]
    rows = [
        {"query": " ".join(texts[n].split()[:2]), "passage": texts[m], "label": int(n == m)}
        for n in range(10)
        for m in (n, n + 1, n + 2)
    ]
    beir = tmp_path / "beir"
    beir.mkdir()
    jsonl(beir / "corpus.jsonl", ({"_id": f"p{n}", "text": text} for n, text in enumerate(texts)))
    jsonl(beir / "queries.jsonl", ({"_id": f"q{n}", "text": t[:20]} for n, t in enumerate(texts)))
    lines = "".join(f"q{n}\tp{n}\t1\n" for n in range(20))
    (beir / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    return SimpleNamespace(
        model=tmp_path / "m", pairs=jsonl(tmp_path / "pairs.jsonl", rows), beir=beir
    )


def test_every_command_has_a_function():
    grouped = [commands for _, commands in GROUPS.values()]
    for commands in (*PANELS.values(), RARE, *grouped):
        for command in commands:
            name = command.__name__
            function = METHODS.get(name) or getattr(dc, name)
            assert callable(function) and function.__doc__


def test_an_option_is_named_as_an_argument():
    error = pickle.loads(pickle.dumps(OptionError("on_error", "is 'no'; leave it out")))
    assert str(error) == "on_error is 'no'; leave it out"
    assert error.typed == "--on-error is 'no'; leave it out"
    with pytest.raises(
        dc.InputError, match=re.escape("runtime is 'gguf'; choose openvino or onnx")
    ):
        dc.export("m", runtime="gguf")


def test_facts_of_models_machine_and_money(cli, place):
    assert dc.info(place.model) == cli("info", place.model, "--json").json
    assert dc.doctor() == cli("doctor", "--json").json
    told = cli("cost", "--passages", 5, "--split-ms", 2, "--json").json
    assert dc.cost(passages=5, split_ms=2) == {k: v for k, v in told.items() if k != "command"}
    planned = dc.plan("3M", tokens=20, model=place.model)
    words = ("plan", "--passages", "3M", "--tokens", 20, "--model", place.model, "--json")
    assert planned.to_json()["need"] == cli(*words).json["need"]
    assert planned.workload.passages == 3_000_000


def test_pairs_judge_a_model(cli, place):
    told = []
    words = ("evaluate", "--task", "pairs", "--data", place.pairs, "--model", place.model)
    pairs = list(dc.read_pairs(place.pairs))
    found = dc.evaluate(place.model, data=pairs, progress=lambda *done: told.append(done))
    assert found == cli(*words, "--json").json
    assert told[-1] == (30, 30)


def test_splits_are_chosen_by_pairs(cli, checkpoint, place, tmp_path):
    source, pairs = checkpoint("bert", "rank"), list(dc.read_pairs(place.pairs))
    words = ("split", source, "-o", tmp_path / "s", "--at", "auto", "--json")
    whole = dc.Model.open(source)
    with pytest.raises(dc.SpecError, match="give a layer, or have agreement"):
        dc.Model.split(source, at="auto")
    assert "name the pairs to compare on: --check" in cli(*words).failure
    deepest, measured = dc.deepest_split(whole, pairs, keep=0.1)
    told = cli(*words, "--check", place.pairs, "--keep", 0.1).json
    assert told["split"] == deepest.spec.split
    assert told["check"] == [one.to_json() for one in measured]


def test_studies_of_splits_and_layers(cli, checkpoint, place, tmp_path):
    source, pairs = checkpoint("bert", "rank"), list(dc.read_pairs(place.pairs))
    whole = dc.Model.open(source)
    words = ("layers", source, "--data", place.pairs, "--passages", 4, "--json")
    study = dc.layers(whole, data=pairs, passages=4)
    told = cli(*words).json
    assert study == {name: told[name] for name in study}
    out = tmp_path / "ours.jsonl"
    words = ("sweep", source, "--data", place.pairs, "-o", tmp_path / "s.jsonl", "--rounds", 0)
    told = cli(*words, "--splits", "2", "--json").json["splits"]
    about = {"model": str(source), "data": ["pairs.jsonl"]}
    lines = dc.sweep(whole, data=pairs, out=out, splits=[2], rounds=0, about=about)
    assert plain([{**line, "command": ""} for line in lines]) == plain(told)
    page = dc.report([out], tmp_path / "r.html")
    again = cli("report", out, "-o", tmp_path / "r.html", "--json").json
    assert again == page.to_json() and Path(again["page"]).is_file()


def test_indexes_are_built_and_measured(cli, place, tmp_path):
    corpus = [str(place.beir / "corpus.jsonl")]
    built = dc.build_index(corpus, tmp_path / "a.idx", model=place.model)
    words = ("index", *corpus, "-o", tmp_path / "b.idx", "--model", place.model, "--json")
    assert plain(built.to_json()) == plain(cli(*words).json)
    assert built.passages == 20
    with pytest.raises(dc.InputError, match="add to it with append, or choose another path"):
        dc.build_index([str(place.pairs)], tmp_path / "a.idx")
    words = ("evaluate", "--task", "retrieval", "--data", place.beir, "--index", tmp_path / "a.idx")
    stages = dc.evaluate_retrieval(tmp_path / "a.idx", place.beir)
    assert [stage.to_json() for stage in stages] == cli(*words, "--json").json["stages"]


def test_a_model_is_exported(cli, place):
    words = ("export", place.model, "--int8", "--calibrate", place.pairs, "--limit", 4, "--json")
    found = dc.export(place.model, int8=True, calibrate=[place.pairs], limit=4)
    assert plain(found) == plain(cli(*words).json)


def test_a_recipe_says_what_is_otherwise():
    made = dc.recipe("plain", {"optimiser.epochs": 1, "seed": 3}, pairs=3200)
    assert (made.optimiser.epochs, made.seed, made.watch.log_every) == (1, 3, 1)
    with pytest.raises(dc.InputError, match="is no field of a recipe"):
        dc.recipe("deformer", {"weights.kdd": 1})


def test_a_model_is_distilled(cli, checkpoint, place, tmp_path):
    source, pairs = checkpoint("bert", "rank"), list(dc.read_pairs(place.pairs))
    words = ("--data", place.pairs, "--at", 1, "--projection", 8, "--one-way", "2", "--epochs", 1)
    cli(
        "distill",
        source,
        "-o",
        tmp_path / "d",
        "--evaluations",
        2,
        *words,
        "--set",
        "precision=fp32",
    )
    chosen = dc.recipe("distill", {"optimiser.epochs": 1, "precision": "fp32"}, pairs=len(pairs))
    options = {"at": 1, "projection": 8, "one_way": (2,), "evaluations": 2}
    made = dc.distill(dc.Model.open(source), data=pairs, recipe=chosen, **options)
    assert made.fingerprint == dc.Model.open(tmp_path / "d").fingerprint
