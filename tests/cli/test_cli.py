"""The command line as a user types it: real processes, one line for every failure."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import decoupled as dc
from decoupled.cli import PANELS
from decoupled.measure.counts import parameters
from decoupled.model.model import Model

PASSAGES = ["Bram Stoker wrote Dracula in 1897.", "The river floods in spring.", "x"]


def run(*words: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "decoupled", *map(str, words)]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )


def failure(*words: object, stdin: str | None = None) -> str:
    """The one line of an expected failure."""
    done = run(*words, stdin=stdin)
    assert done.returncode == 1, done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr


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


def test_every_command_stands_in_a_panel_of_the_help():
    shown = run("--help").stdout
    assert [p for p in PANELS if f" {p} " in shown] == list(PANELS)
    assert "─ Commands ─" not in shown


def test_every_command_has_help():
    for command in ("split", "info", "rerank", "classify", "doctor"):
        done = run(command, "--help")
        assert done.returncode == 0 and len(done.stdout) > 100


def test_split_then_rerank_gives_the_joint_models_scores(checkpoint, passages, tmp_path):
    import torch
    import transformers

    source = checkpoint("bert", "rank")
    done = run("split", source, "-o", tmp_path / "m", "--at", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["split"] == 0
    done = run("rerank", "who wrote it", "--model", tmp_path / "m", passages, "--raw", "--json")
    answer = json.loads(done.stdout)
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


def test_rerank_reads_stdin_and_gives_probabilities(checkpoint, tmp_path):
    source = checkpoint("bert", "rank")
    done = run("rerank", "q", "--model", source, "--json", "-k", 2, stdin="one\ntwo\nthree\n")
    hits = json.loads(done.stdout)["hits"]
    assert len(hits) == 2 and all(0 <= hit["score"] <= 1 for hit in hits)


def test_rerank_takes_the_bundled_model_when_none_is_named(passages):
    hits = json.loads(run("rerank", "Who wrote Dracula?", passages, "--json").stdout)["hits"]
    assert len(hits) == len(PASSAGES) and "Dracula" in hits[0]["text"]


def test_nothing_to_rerank_is_said(checkpoint):
    done = run("rerank", "q", "--model", checkpoint("bert", "rank"), stdin="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no passages in stdin\n")


def test_a_table_for_people(checkpoint, passages):
    done = run("rerank", "q", "--model", checkpoint("bert", "rank"), passages)
    assert done.returncode == 0 and "score" in done.stdout and "Dracula" in done.stdout


def test_a_table_on_a_console_that_is_not_utf8(checkpoint, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = run(
        "rerank", "q", "--model", checkpoint("bert", "rank"), stdin="a caf\u00e9 \U0001f389\n"
    )
    assert done.returncode == 0 and "a caf? ?" in done.stdout and done.stderr == ""


def test_classify_two_texts_and_a_file(checkpoint, tmp_path):
    source = checkpoint("bert", "classes")
    one = json.loads(
        run("classify", "a man eats", "someone eats", "--model", source, "--json").stdout
    )
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
    many = json.loads(run("classify", "--pairs", pairs, "--model", source, "--json").stdout)
    assert many == one


def test_info_says_what_a_model_is(checkpoint, tmp_path):
    run("split", checkpoint("bert", "rank"), "-o", tmp_path / "m", "--at", 2)
    facts = json.loads(run("info", tmp_path / "m", "--json").stdout)
    assert (facts["family"], facts["layers"], facts["split"]) == ("bert", 3, 2)
    told = parameters(Model.load(tmp_path / "m").spec)
    assert (facts["embedding_parameters"], facts["layer_parameters"]) == (
        told.embedding,
        told.layers,
    )
    assert facts["head_parameters"] == told.pooler + told.outputs and facts["split_parameters"] == 0
    assert facts["parameters"] == told.total
    assert facts["fingerprint"] == Model.load(tmp_path / "m").fingerprint
    shown = run("info", tmp_path / "m").stdout
    assert f" {told.total:,} " in shown and "did split, at 2" in shown and "[" not in shown


def test_doctor_reports_the_machine():
    found = json.loads(run("doctor", "--json").stdout)
    assert found["machine"]["AMX"] and found["packages"]["torch"] != "not installed"
    assert found["commands"]["demo, index, add, search, ask, export, serve"] == "ready"
    assert found["runtimes"]["openvino"].startswith("ready")


def checked(checkpoint, tmp_path, *words: object) -> subprocess.CompletedProcess[str]:
    data = tmp_path / "check.jsonl"
    rows = [{"query": f"question {i}", "passage": f"passage number {i} of many"} for i in range(6)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run("split", checkpoint("bert", "rank"), "-o", tmp_path / "m", "--check", data, *words)


def test_check_measures_agreement_and_warns_when_it_falls(checkpoint, tmp_path):
    done = checked(checkpoint, tmp_path, "--at", 3, "--json")
    (agreement,) = json.loads(done.stdout)["check"]
    assert agreement["head"] == "rank" and agreement["queries"] == 6 and agreement["fell"]
    assert "warning: at split 3 the rank head agrees only" in done.stderr
    (same,) = json.loads(checked(checkpoint, tmp_path, "--at", 0, "--json").stdout)["check"]
    assert same["agreement"] == 1 and not same["fell"]


def test_auto_takes_the_deepest_split_that_agrees(checkpoint, tmp_path):
    done = checked(checkpoint, tmp_path, "--at", "auto", "--keep", "0.5", "--json")
    found = json.loads(done.stdout)
    good = [a["split"] for a in found["check"] if a["agreement"] >= 0.5]
    assert [a["split"] for a in found["check"]] == [1, 2]
    assert found["split"] == max(good, default=0)
    half = run("split", checkpoint("bert", "rank"), "-o", tmp_path / "h", "--at", "auto", "--json")
    assert json.loads(half.stdout)["split"] == 1 and "half of the layers" in half.stderr


@pytest.mark.parametrize("head", ["span", "classes", "choice"])
def test_check_works_for_every_head(checkpoint, tmp_path, head):
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
    done = run(
        "split",
        checkpoint("bert", head),
        "-o",
        tmp_path / "m",
        "--at",
        0,
        "--check",
        data,
        "--json",
    )
    (agreement,) = json.loads(done.stdout)["check"]
    assert agreement["head"] == head and agreement["agreement"] == 1
    assert ("f1" in agreement) == (head == "span")


def test_bad_splits_fail_in_one_line_and_write_nothing(checkpoint, tmp_path):
    source, out = checkpoint("bert", "rank", num_hidden_layers=12), tmp_path / "out"
    assert "split=13, but the encoder has 12 layers; choose 0..12" in failure(
        "split", source, "-o", out, "--at", 13
    )
    assert "--at is 'deep'; give a layer number or auto" in failure(
        "split", source, "-o", out, "--at", "deep"
    )
    # Before the checkpoint is opened, which may take long.
    assert "--at is 'deep'" in failure("split", "none", "-o", out, "--at", "deep")
    (taken := tmp_path / "gpt").mkdir()
    (taken / "config.json").write_text('{"model_type": "gpt2"}')
    assert f"{taken} exists and is not a model folder" in failure(
        "split", "none", "-o", taken, "--at", 1
    )
    assert "none" in failure("split", tmp_path / "none", "-o", out, "--at", 1)
    assert "bert" in failure("split", taken, "-o", out, "--at", 1)
    assert [p.name for p in tmp_path.iterdir()] == ["gpt"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [("truncate", "model.safetensors"), ("tokenizer", "tokenizer.json"), ("tensor", "missing")],
)
def test_damaged_checkpoints_fail_in_one_line(checkpoint, tmp_path, damage, message):
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
    assert message in failure("split", source, "-o", tmp_path / "out", "--at", 1)
    assert not (tmp_path / "out").exists()


def test_wrong_heads_and_inputs_are_explained(checkpoint, passages, tmp_path):
    assert (
        "neutral does not rank passages; only models of one value or of two labels do"
        in failure("rerank", "q", "--model", checkpoint("bert", "classes"), passages)
    )
    assert "give two texts, or --pairs FILE" in failure(
        "classify", "one", "--model", checkpoint("bert", "classes")
    )
    assert "none.jsonl" in failure(
        "rerank", "q", "--model", checkpoint("bert", "rank"), tmp_path / "none.jsonl"
    )
    assert run("split").returncode == 2


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
