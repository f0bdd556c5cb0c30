"""The command line as a user types it: one line for every failure, in a real process as well."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import typer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import decoupled as dc
from commands import Commands, Done
from decoupled.cli import GROUPS, PANELS, RARE
from decoupled.measure.counts import parameters
from decoupled.model.model import Model

PASSAGES = ["Bram Stoker wrote Dracula in 1897.", "The river floods in spring.", "x"]


def run(*words: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """A process of its own, whose libraries may have something to say when they are loaded."""
    command = [sys.executable, "-m", "decoupled", *map(str, words)]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def cli(monkeypatch, capsys) -> Commands:
    return Commands(monkeypatch, capsys)


@pytest.fixture(scope="module")
def passages(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "p.jsonl"
    rows = [json.dumps({"id": f"p{i}", "text": text}) for i, text in enumerate(PASSAGES)]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_help_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys, decoupled.cli as c; "
        "sys.argv=['decoupled','--help']\n"
        "try: c.main()\n"
        "except SystemExit: pass\n"
        "heavy={'torch','transformers','lance','pyarrow','numpy','fastapi','ray','matplotlib','openvino'}\n"
        "sys.exit(','.join(heavy & set(sys.modules)) or 0)"
    )
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Processor time: wall time says more about the other tests that run at once.
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0, done.stderr
    assert "split" in done.stdout
    assert min(spent) < 0.5


def test_the_version():
    done = run("--version")
    assert done.returncode == 0 and done.stdout == f"decoupled {version('decoupled-transformer')}\n"


def test_every_command_stands_in_a_panel_of_the_help(cli):
    shown = cli("--help").out
    assert [p for p in PANELS if f" {p} " in shown] == list(PANELS)
    assert " Experiments " in shown and "`compact`" in shown and "`classify`" in shown
    assert "─ Commands ─" not in shown


def test_a_command_looks_through_its_own_options_alone(cli, monkeypatch):
    looked, look = [], typer.main.get_params_from_function
    monkeypatch.setattr(
        "typer.main.get_params_from_function", lambda f: looked.append(f.__name__) or look(f)
    )
    assert cli("cost", "--json").code == 0
    assert "cost" in looked and "search" not in looked
    looked.clear()
    assert cli("lab", "cost", "--json").code == 0
    assert "cost" in looked and not {"search", "bench", "shrink"} & {*looked}


GROUPED = [(group, c.__name__) for group, (_, commands) in GROUPS.items() for c in commands]
COMMANDS = [(c.__name__,) for c in (*(c for p in PANELS.values() for c in p), *RARE)] + GROUPED


def options(help_text: str) -> list[str]:
    """The options that a help lists."""
    return re.findall(r"^│ (?:\*  |   )?(--?[a-z][a-z0-9-]*)", help_text, re.MULTILINE)


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_has_help_of_at_most_14_options(cli, words):
    done = cli(*words, "--help")
    assert done.code == 0 and len(done.out) > 100
    assert 2 <= len(options(done.out)) <= 14
    every = cli(*words, "--help-all")
    assert every.code == 0 and "--help-all" not in every.out
    rare = len(options(every.out)) - len(options(done.out))
    told = re.search(r"(\d+) rarely needed options are not shown: see --help-all", done.out)
    assert rare == (int(told[1]) if told else 0)


def test_the_help_shows_18_commands(cli):
    rows = re.findall(r"^│ ([a-z]+) +\S", cli("--help").out, re.MULTILINE)
    named = [c.__name__ for panel in PANELS.values() for c in panel]
    assert rows == [*named, *GROUPS] and len(rows) <= 18
    for group, (_, commands) in GROUPS.items():
        rows = re.findall(r"^│ ([a-z]+) +\S", cli(group, "--help").out, re.MULTILINE)
        assert rows == [command.__name__ for command in commands]


@pytest.mark.parametrize(("group", "command"), GROUPED)
def test_an_old_spelling_is_the_same_command(cli, group, command):
    new, old = cli(group, command, "--help-all"), cli(command, "--help-all")
    assert old.code == new.code == 0
    assert old.out.partition("╭")[2] == new.out.partition("╭")[2] != ""
    new, old = cli(group, command, "--none"), cli(command, "--none")
    assert old.code == new.code == 2 and "No such option: --none" in old.err


def test_an_old_spelling_prints_the_same(cli, tmp_path):
    for words in (("cost", "--tokens", 80), ("cost", "--tokens", -1), ("shrink", "--list")):
        group = "methods" if words[0] == "shrink" else "lab"
        new, old = cli(group, *words), cli(*words)
        assert (old.code, old.out, old.err) == (new.code, new.out, new.err)


def test_split_then_rerank_gives_the_joint_models_scores(cli, checkpoint, passages, tmp_path):
    import torch
    import transformers

    source = checkpoint("bert", "rank")
    assert cli("split", source, "-o", tmp_path / "m", "--at", "0", "--json").json["split"] == 0
    words = ("who wrote it", "--model", tmp_path / "m", passages, "--raw", "--json")
    answer = cli("rerank", *words).json
    assert [*answer] == ["query", "hits", "timing"]
    assert {*answer["timing"]} == {"retrieve_ms", "fetch_ms", "encode_ms", "cross_ms", "total_ms"}
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(source).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    pairs = tokenizer(["who wrote it"] * 3, PASSAGES, padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = theirs(**pairs).logits[:, 0].tolist()
    got = {hit["id"]: hit["score"] for hit in answer["hits"]}
    assert [got[f"p{i}"] for i in range(3)] == pytest.approx(expected, abs=1e-4)
    scores = [hit["score"] for hit in answer["hits"]]
    assert scores == sorted(scores, reverse=True)


def test_rerank_reads_stdin_and_gives_probabilities(cli, checkpoint):
    source = checkpoint("bert", "rank")
    done = cli("rerank", "q", "--model", source, "--json", "-k", 2, stdin="one\ntwo\nthree\n")
    hits = done.json["hits"]
    assert len(hits) == 2 and all(0 <= hit["score"] <= 1 for hit in hits)


def test_rerank_takes_the_bundled_model_when_none_is_named(cli, passages):
    hits = cli("rerank", "Who wrote Dracula?", passages, "--json").json["hits"]
    assert len(hits) == len(PASSAGES) and "Dracula" in hits[0]["text"]


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    """A model on disk, which runs without torch."""
    path = tmp_path_factory.mktemp("model") / "m"
    Model.split(model("bert", "rank"), at=2).save(path)
    return path


def test_nothing_to_rerank_is_said(folder):
    done = run("rerank", "q", "--model", folder, stdin="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no passages in stdin\n")


def test_a_table_for_people(cli, checkpoint, passages):
    done = cli("rerank", "q", "--model", checkpoint("bert", "rank"), passages)
    assert done.code == 0 and "score" in done.out and "Dracula" in done.out


def test_a_table_on_a_console_that_is_not_utf8(folder, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = run("rerank", "q", "--model", folder, stdin="a caf\u00e9 \U0001f389\n")
    assert done.returncode == 0 and "a caf? ?" in done.stdout and done.stderr == ""


def test_classify_two_texts_and_a_file(cli, checkpoint, tmp_path):
    source = checkpoint("bert", "classes")
    one = cli("classify", "a man eats", "someone eats", "--model", source, "--json").json
    theirs = AutoModelForSequenceClassification.from_pretrained(source)
    tokens = AutoTokenizer.from_pretrained(source)(
        "a man eats", "someone eats", return_tensors="pt"
    )
    with torch.no_grad():
        shares = theirs(**tokens).logits.softmax(-1)[0].tolist()
    expected = {theirs.config.id2label[n]: share for n, share in enumerate(shares)}
    assert one["labels"][0]["scores"] == pytest.approx(expected, abs=1e-5)
    assert one["labels"][0]["label"] == max(expected, key=expected.get)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"premise": "a man eats", "hypothesis": "someone eats"}) + "\n")
    assert cli("classify", "--pairs", pairs, "--model", source, "--json").json == one


def test_info_says_what_a_model_is(cli, checkpoint, tmp_path):
    cli("split", checkpoint("bert", "rank"), "-o", tmp_path / "m", "--at", 2)
    facts = cli("info", tmp_path / "m", "--json").json
    assert (facts["family"], facts["layers"], facts["split"]) == ("bert", 3, 2)
    told = parameters(Model.load(tmp_path / "m").spec)
    assert (facts["embedding_parameters"], facts["layer_parameters"]) == (
        told.embedding,
        told.layers,
    )
    assert facts["head_parameters"] == told.pooler + told.outputs and facts["split_parameters"] == 0
    assert facts["parameters"] == told.total
    assert facts["fingerprint"] == Model.load(tmp_path / "m").fingerprint
    shown = cli("info", tmp_path / "m").out
    assert f" {told.total:,} " in shown and "did split, at 2" in shown and "[" not in shown


def test_doctor_reports_the_machine(cli):
    found = cli("doctor", "--json").json
    assert found["machine"]["AMX"] and found["packages"]["torch"] != "not installed"
    assert found["commands"]["demo, index, add, search, ask, export, serve"] == "ready"
    assert found["runtimes"]["openvino"].startswith("ready")


def checked(cli, checkpoint, tmp_path, *words: object) -> Done:
    data = tmp_path / "check.jsonl"
    rows = [{"query": f"question {i}", "passage": f"passage number {i} of many"} for i in range(6)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return cli("split", checkpoint("bert", "rank"), "-o", tmp_path / "m", "--check", data, *words)


def test_check_measures_agreement_and_warns_when_it_falls(cli, checkpoint, tmp_path):
    done = checked(cli, checkpoint, tmp_path, "--at", 3, "--json")
    (agreement,) = done.json["check"]
    assert agreement["head"] == "rank" and agreement["queries"] == 6 and agreement["fell"]
    assert "warning: at split 3 the rank head agrees only" in done.err
    (same,) = checked(cli, checkpoint, tmp_path, "--at", 0, "--json").json["check"]
    assert same["agreement"] == 1 and not same["fell"]


def test_auto_takes_the_deepest_split_that_agrees(cli, checkpoint, tmp_path):
    found = checked(cli, checkpoint, tmp_path, "--at", "auto", "--keep", "0.5", "--json").json
    good = [a["split"] for a in found["check"] if a["agreement"] >= 0.5]
    assert [a["split"] for a in found["check"]] == [1, 2]
    assert found["split"] == max(good, default=0)
    alone = cli("split", checkpoint("bert", "rank"), "-o", tmp_path / "h", "--at", "auto")
    assert "--at auto measures every layer" in alone.failure


def test_certify_writes_a_card(cli, checkpoint, tmp_path):
    assert cli("split", checkpoint("bert", "rank"), "-o", tmp_path / "m", "--at", 1).code == 0
    data, card = tmp_path / "pairs.jsonl", tmp_path / "card.md"
    rows = [{"query": "q", "passage": f"passage {n} of words", "label": n} for n in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = cli("certify", tmp_path / "m", "--data", data, "--card", card, "--json")
    assert done.json["kind"] == "certificate" and done.json["queries"] == 1
    assert "milliseconds a query" in card.read_text()


@pytest.mark.parametrize("head", ["span", "classes", "choice"])
def test_check_works_for_every_head(cli, checkpoint, tmp_path, head):
    data = tmp_path / "check.jsonl"
    rows = [
        {
            "question": f"option {i}",
            "context": "the one passage of words",
            "answers": {"text": ["one"], "answer_start": [4]},
        }
        for i in range(4)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("-o", tmp_path / "m", "--at", 0, "--check", data, "--json")
    (agreement,) = cli("split", checkpoint("bert", head), *words).json["check"]
    assert agreement["head"] == head and agreement["agreement"] == 1
    assert ("f1" in agreement) == (head == "span")


def test_bad_splits_fail_in_one_line_and_write_nothing(cli, checkpoint, tmp_path):
    source, out = checkpoint("bert", "rank", num_hidden_layers=12), tmp_path / "out"
    (taken := tmp_path / "gpt").mkdir()
    (taken / "config.json").write_text('{"model_type": "gpt2"}')
    for checked, to, at, said in (
        (source, out, 13, "split=13, but the encoder has 12 layers; choose 0..12"),
        (source, out, "deep", "--at is 'deep'; give a layer number or auto"),
        ("none", out, "deep", "--at is 'deep'"),  # before the checkpoint is opened
        ("none", taken, 1, f"{taken} exists and is not a model folder"),
        (tmp_path / "none", out, 1, "none"),
        (taken, out, 1, "bert"),
    ):
        assert said in cli("split", checked, "-o", to, "--at", at).failure
    assert [p.name for p in tmp_path.iterdir()] == ["gpt"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [("truncate", "model.safetensors"), ("tokenizer", "tokenizer.json"), ("tensor", "missing")],
)
def test_damaged_checkpoints_fail_in_one_line(cli, checkpoint, tmp_path, damage, message):
    from tiny import edit_weights

    source = tmp_path / "source"
    shutil.copytree(checkpoint("bert", "rank"), source)
    if damage == "truncate":
        data = (source / "model.safetensors").read_bytes()
        (source / "model.safetensors").write_bytes(data[: len(data) // 2])
    elif damage == "tokenizer":
        (source / "tokenizer.json").unlink()
    else:
        name = "bert.encoder.layer.1.output.dense.weight"
        edit_weights(source, drop=[name])
        message = name
    words = ("split", source, "-o", tmp_path / "out", "--at", 1)
    assert message in (said := cli(*words).failure)
    assert not (tmp_path / "out").exists()
    if damage == "tensor":
        done = run(*words)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_wrong_heads_and_inputs_are_explained(cli, checkpoint, passages, tmp_path):
    classes, rank = checkpoint("bert", "classes"), checkpoint("bert", "rank")
    missing = tmp_path / "none.jsonl"
    wanted = "neutral does not rank passages; only models of one value or of two labels do"
    assert wanted in cli("rerank", "q", "--model", classes, passages).failure
    assert "give two texts, or --pairs FILE" in cli("classify", "one", "--model", classes).failure
    assert "none.jsonl" in cli("rerank", "q", "--model", rank, missing).failure
    assert cli("split").code == 2


def test_plain_serve_changes_a_copy_of_the_sample(model, tmp_path, monkeypatch, capsys):
    from decoupled.cli import search
    from served import tiny_index, tiny_split

    sample = tiny_index(tmp_path / "sample.idx", tiny_split(model))
    before = {f: f.read_bytes() for f in sample.rglob("*") if f.is_file()}
    monkeypatch.setattr(search, "_sample_index", lambda runtime: sample)
    served = []

    def serve_index(index, **_):
        served.append(index())
        with dc.Index.open(served[0], write=True) as opened:
            opened.add([dc.Passage(id="new", text="a new passage")])

    monkeypatch.setattr(dc, "serve_index", serve_index)
    search.serve()
    assert "a copy of the sample passages" in capsys.readouterr().err
    assert served[0] != sample and len(dc.Index.open(served[0])) == len(dc.Index.open(sample)) + 1
    assert {f: f.read_bytes() for f in sample.rglob("*") if f.is_file()} == before
