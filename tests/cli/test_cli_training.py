"""`distill`, `tune` and `evaluate` as a user types them."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reader_command
import torch

from commands import Commands, jsonl
from decoupled.measure.metrics import best_over
from decoupled.measure.pairs import read_pairs
from decoupled.model.model import Model
from decoupled.runtime.cpu import multiplies_halves
from decoupled.search.engine import Engine
from decoupled.train.data.prepare import tokenise
from decoupled.train.data.tasks import TASKS
from decoupled.train.evaluate import How
from decoupled.train.evaluate import evaluate_examples as measure
from toy import class_pairs, reader_sets, span_pairs

FAST = ("--epochs", 1, "--batch", 8, "--lr", 1e-3)


@pytest.fixture
def cli(monkeypatch, capsys):
    return Commands(monkeypatch, capsys)


def span_rows(count: int = 40, seed: int = 0) -> list[dict]:
    return [
        {
            "id": pair.id,
            "question": pair.query,
            "context": pair.passage,
            "answers": [{"text": a.text, "answer_start": a.start} for a in pair.answers],
        }
        for pair in span_pairs(count, seed)
    ]


@pytest.fixture(scope="module")
def spans(tmp_path_factory) -> Path:
    return jsonl(tmp_path_factory.mktemp("data") / "spans.jsonl", span_rows())


@pytest.fixture(scope="module")
def race(tmp_path_factory) -> Path:
    rows = [
        {
            "article": f"the {words[0]} was near the {words[1]}",
            "question": "where was the _",
            "options": words,
            "answer": "ABCD"[number % 4],
        }
        for number, pair in enumerate(span_pairs(20))
        for words in [pair.passage.split()]
    ]
    return jsonl(tmp_path_factory.mktemp("data") / "race.jsonl", rows)


# A reader -----------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


@pytest.fixture(scope="module")
def readers(tmp_path_factory, checkpoint) -> Path:
    """A folder with what the page of training begins with."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "encoder").symlink_to(checkpoint("bert", "bare"))
    reading, pairs, alone = reader_sets()
    articles = [
        {
            "title": pair.title,
            "paragraphs": [
                {
                    "context": pair.passage,
                    "qas": [
                        {
                            "id": pair.id,
                            "question": pair.query,
                            "answers": [
                                {"text": a.text, "answer_start": a.start} for a in pair.answers
                            ],
                        }
                    ],
                }
            ],
        }
        for pair in reading.pairs
    ]
    squad = json.dumps({"version": "2", "data": articles})
    (folder / "questions.json").write_text(squad)
    rows = [{"query": p.query, "passage": p.passage, "title": p.title} for p in pairs.pairs]
    jsonl(folder / "pairs.jsonl", rows)
    jsonl(folder / "docs.jsonl", [{"id": p.id, "text": p.text} for p in alone.passages])
    return folder


def test_the_commands_of_the_page_run_as_typed(cli, readers, monkeypatch, capsys):
    monkeypatch.chdir(readers)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    program, *words = shlex.split(lines[0].replace("--minutes 1", "--minutes 0.02 --json"))[1:]
    assert program == "examples/starter/train.py" and words[0] == "reader"
    with pytest.raises(SystemExit) as ended:
        reader_command.run(words[1:])
    result = json.loads(capsys.readouterr().out)
    assert not ended.value.code and result["recipe"] == "reader" and result["steps"] >= 2
    assert result["datasets"] == ["questions.json", "pairs.jsonl=2", "docs.jsonl"]
    assert [line.split()[1] for line in lines[1:]] == ["index", "ask"]
    for line in lines[1:]:
        done = cli(*shlex.split(line)[1:])
        assert done.code == 0, f"{line}\n{done.err}"
    made = Model.load("reader").spec
    assert (made.split, made.projection.width, made.vector.width, made.late.width) == (1, 16, 16, 8)


def test_the_program_says_what_is_wrong_in_one_line(readers, tmp_path, capsys):
    words = [readers / "encoder", "-o", tmp_path / "m", "--data", readers / "pairs.jsonl"]
    with pytest.raises(SystemExit) as ended:
        reader_command.run([*map(str, words), "--set", "drawing.steps=0"])
    said = capsys.readouterr().err
    assert ended.value.code == 1 and "steps=0; choose a number from 1" in said


# Distilling ---------------------------------------------------------------------------------------


def test_distilling_a_checkpoint_writes_a_split_model(cli, checkpoint, spans, tmp_path):
    out = tmp_path / "m"
    words = ("distill", checkpoint("bert", "span"), "-o", out, "--data", spans, "--task", "squad")
    done = cli(*words, "--at", 1, "--seed", 3, "--set", "weights.kd=0.7", *FAST, "--json")
    found = done.json
    made = Model.load(out)
    assert made.spec.split == 1
    recipe = made.history[-1]["recipe"]
    assert (recipe["name"], recipe["seed"]) == ("distill", 3)
    assert recipe["precision"] == ("bf16" if multiplies_halves() else "fp32")
    weights = recipe["settings"]["weights"]
    assert weights["kd"] == 0.7 and weights["lrs"] == 0.5
    assert (recipe["optimiser"]["lr"], recipe["optimiser"]["batch"]) == (1e-3, 8)
    assert (found["task"], found["pairs"], found["metric"]) == ("squad", 40, "f1")
    lines = [json.loads(row) for row in Path(found["log"]).read_text().splitlines()]
    assert found["tune"] == pytest.approx(max(x["tune"] for x in lines if "tune" in x), abs=1e-4)
    assert found["steps"] == lines[-1]["total"] == lines[-1]["step"]
    assert f"f1 {found['tune']:.2f} on the tune split" in done.err
    assert not list(tmp_path.glob("m.run/checkpoint*"))
    again = cli("evaluate", "--task", "squad", "--data", spans, "--model", out, "--json").json
    assert {"f1", "exact"} <= again.keys()


def test_a_spec_file_describes_a_student_for_the_model_to_teach(cli, checkpoint, spans, tmp_path):
    spec, out = tmp_path / "spec.json", tmp_path / "out"
    spec.write_text(
        '{"layers": 2, "width": 16, "heads": 2, "table": {"kind": "define", "rank": 8}}'
    )
    words = (
        "distill",
        checkpoint("bert", "span"),
        "--data",
        spans,
        "--task",
        "squad",
        "--spec",
        spec,
    )
    assert cli(*words, "-o", out, "--set", "match=uniform", *FAST).code == 0
    assert Model.load(out).spec.encoder.embedding.tokens.kind == "define"
    spec.write_text('{"layers": 2, "width": 16, "heads": 2, "table": {"kind": "cake"}}')
    failed = cli(*words, "-o", tmp_path / "m").failure
    assert "table is of no known kind" in failed


def test_one_way_layers_are_distilled_from_the_same_weights(cli, checkpoint, spans, tmp_path):
    source, out = checkpoint("bert", "span"), tmp_path / "m"
    words = ("distill", source, "-o", out, "--data", spans, "--task", "squad", "--at", 1, *FAST)
    assert cli(*words, "--one-way", "auto").code == 0
    assert Model.load(out).spec.one_way == (2,)
    assert cli("info", out, "--json").json["one_way"] == [2]
    assert "the last layer (3) is one-way" in cli(*words, "--one-way", "2-3").failure
    split = cli("split", source, "-o", tmp_path / "s", "--at", 1, "--one-way", "2", "--json")
    auto = ("split", source, "-o", tmp_path / "a", "--at", "auto", "--check", spans, "--limit", 4)
    tried = cli(*auto, "--one-way", "auto", "--json").json["check"]
    assert [one["split"] for one in tried] == [1]
    assert "with it write one_way auto" in cli(*auto, "--one-way", "2").failure
    assert split.json["one_way"] == [2] and Model.load(tmp_path / "s").spec.one_way == (2,)


def test_plain_training_adds_the_head_that_the_labels_need(cli, checkpoint, tmp_path):
    rows = [{"query": p.query, "passage": p.passage, "label": p.label} for p in class_pairs(24)]
    data, out = jsonl(tmp_path / "p.jsonl", rows), tmp_path / "m"
    done = cli(
        *("distill", checkpoint("bert", "bare"), "-o", out, "--data", data, "--recipe", "plain"),
        *("--evaluations", 0, *FAST, "--json"),
    )
    assert done.json["tune"] is None and "tune split" not in done.err
    made = Model.load(out)
    assert made.spec.head("classes").labels == ("no", "yes") and made.spec.split == 0
    assert made.history[-1]["pairs"] == 24


def test_a_named_teacher_and_a_projection(cli, checkpoint, spans, tmp_path):
    teacher, out = checkpoint("bert", "span"), tmp_path / "m"
    words = ("distill", checkpoint("bert", "span", num_hidden_layers=2), "-o", out, "--at", 1)
    words += ("--data", spans, "--task", "squad", "--teacher", teacher, "--projection", 16)
    # One layer to imitate is not three: the logits alone are compared.
    assert cli(*words, "--set", "weights.lrs=0", *FAST).code == 0
    assert Model.load(out).spec.projection.width == 16
    phases = {json.loads(x)["phase"] for x in Path(f"{out}.run/log.jsonl").read_text().splitlines()}
    assert phases == {"codec", "train"}


def started(words: tuple[object, ...], ready) -> subprocess.Popen:
    """A real process, running until `ready()` is true."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "decoupled", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # A shell that runs the tests in the background leaves the signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return process


def test_ctrl_c_keeps_a_checkpoint_and_the_same_command_goes_on(cli, checkpoint, spans, tmp_path):
    def words(name: str) -> tuple[object, ...]:
        return (
            *("distill", checkpoint("bert", "span"), "-o", tmp_path / name, "--at", 1),
            *("--data", spans, "--task", "squad", *FAST, "--epochs", 10),
            *("--set", "watch.save_every=4", "--set", "watch.log_every=4"),
        )

    state = tmp_path / "m.run" / "checkpoint" / "checkpoint.json"

    def ready() -> bool:
        try:
            return json.loads(state.read_text())["step"] >= 4
        except (OSError, ValueError):
            return False

    process = started(words("m"), ready)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and out == "", err
    last = err.splitlines()[-1]
    assert last.startswith("error: stopped at step ")
    assert "Traceback" not in err and not (tmp_path / "m").exists()
    saved = json.loads(state.read_text())["step"]
    assert saved >= 4 and f"run the same command to go on from step {saved}, whose" in last

    refused = cli(*words("m"), "--lr", 0.5)
    assert refused.code == 1
    assert "recipe.optimiser.lr was 0.001, is 0.5); repeat that command to finish it" in refused.err

    with Path(f"{tmp_path}/m.run/log.jsonl").open("a") as log:
        log.write('{"phase": "tr\n')  # cut off by a crash
    before = len(Path(f"{tmp_path}/m.run/log.jsonl").read_text().splitlines())
    resumed = cli(*words("m"), "--json")
    assert "going on with the run in" in resumed.err
    lines = Path(f"{tmp_path}/m.run/log.jsonl").read_text().splitlines()
    assert json.loads(lines[before])["step"] > saved
    whole = cli(*words("whole"), "--json")
    assert resumed.json["tune"] == pytest.approx(whole.json["tune"])
    ours, theirs = (Model.load(tmp_path / n).net.state_dict() for n in ("m", "whole"))
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data", "NONE.jsonl"), "NONE.jsonl does not exist; check the path"),
        (("--task", "chess"), "--task is 'chess'; choose one of squad, squad2, race"),
        (
            ("--recipe", "cake"),
            "recipe 'cake' is unknown; choose one of distill, plain, deformer, decoupled",
        ),
        (("--set", "kd"), "--set is 'kd'; write name=value, for example weights.kd=0.5"),
        (("--set", "weights.kdd=1"), "'weights.kdd' is no field of a recipe; choose one of name, "),
        (("--set", "weights=1"), "'weights' is no field of a recipe"),
        (("--set", "weights.kd=much"), "Recipe.weights.kd is 'much'; expected float"),
        (("--set", "weights.kd=-1"), "a weight is below 0 or not finite; leave a loss out with 0"),
        (("--set", "watch.log_every=0"), "log_every=0; choose a number from 1"),
        (("--set", "watch.evaluations=-1"), "evaluations=-1; choose a number from 0"),
        (("--set", "optimiser.clip=-1"), "clip=-1.0; choose a number from 0"),
        (("--seed", "-1"), "seed=-1; choose a number from 0"),
        (("--set", "splits=[1,2]"), "'splits' is no field of a recipe; choose one of name, "),
        (("--lr", "nan"), "optimiser.lr=nan; choose a finite number"),
        (("--epochs", "0"), "epochs=0.0; choose a number above 0"),
        (("--on-error", "maybe"), "--on-error is 'maybe'; choose stop or skip"),
        (("--one-way", "top"), "--one-way is 'top'; write auto, or layers such as 4-6 or 4,5"),
        (("--one-way", "6-4"), "--one-way is '6-4'; write auto, or layers such as 4-6 or 4,5"),
        (("--teacher", "M"), "--teacher is the model itself (M); name another, or leave it out"),
    ],
)
def test_mistakes_fail_before_a_model_is_loaded(cli, spans, tmp_path, monkeypatch, words, message):
    monkeypatch.setattr(Model, "open", lambda source: pytest.fail("a model was loaded"))
    given = ("distill", "M", "-o", tmp_path / "m", "--data", spans, "--task", "squad")
    assert message in cli(*given, *words).failure
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_distilled_is_explained(cli, checkpoint, spans, tmp_path):
    source, taken = checkpoint("bert", "span"), tmp_path / "taken"
    given = ("distill", source, "--data", spans, "--task", "squad")
    assert "is not split, so its teacher would be itself; give at=K" in (
        cli(*given, "-o", tmp_path / "m").failure
    )
    assert "split=9, but the encoder has 3 layers" in (
        cli(*given, "-o", tmp_path / "m", "--at", 9).failure
    )
    assert "has another tokenizer than" in (
        cli(*given, "-o", tmp_path / "m", "--teacher", checkpoint("roberta", "span")).failure
    )
    taken.mkdir()
    (taken / "mine").write_text("x")
    assert "taken exists and is not a model folder; choose another path" in (
        cli(*given, "-o", taken, "--at", 1).failure
    )
    assert {p.name for p in tmp_path.iterdir()} == {"taken"}


def test_broken_lines_stop_or_are_skipped(cli, checkpoint, tmp_path):
    data = jsonl(tmp_path / "p.jsonl", span_rows(12))
    data.write_text(data.read_text() + "{broken\n")
    given = ("distill", checkpoint("bert", "span"), "--at", 1, "--data", data, "--task", "squad")
    given += ("-o", tmp_path / "m", *FAST)
    assert f"{data}:13: is not one JSON object on one line" in cli(*given).failure
    done = cli(*given, "--on-error", "skip", "--json")
    assert done.json["pairs"] == 12 and f"skipped {data}:13:" in done.err


# Tuning -------------------------------------------------------------------------------------------


def test_tuning_keeps_its_trials_and_goes_on(cli, checkpoint, spans, tmp_path, monkeypatch):
    out = tmp_path / "tune.json"
    given = ("tune", checkpoint("bert", "span"), "-o", out, "--at", 1, "--data", spans)
    given += ("--task", "squad", *FAST)
    found = cli(*given, "--trials", 2, "--json").json
    assert json.loads(out.read_text()) == found
    assert len(found["trials"]) == 2 and found["best"] == found["trials"][0]
    assert found["best"]["score"] == max(t["score"] for t in found["trials"])
    assert {"kd": 0.5, "lrs": 0.2, "task": 0.3} in [
        {k: t[k] for k in ("kd", "lrs", "task")} for t in found["trials"]
    ]
    from decoupled.lab import tune

    monkeypatch.setattr(tune, "train_model", lambda *a, **k: pytest.fail("trained again"))
    again = cli(*given, "--trials", 2)
    assert again.code == 0 and "best of 2 trials, 0 of them new" in again.out
    assert f"--set weights.kd={found['best']['kd']}" in again.err
    other = cli(*given, "--trials", 2, "--seed", 5)
    assert "recipe.seed was 0, is 5" in other.failure


def test_a_learning_rate_that_is_too_high_is_explained(cli, checkpoint, spans, tmp_path):
    given = (checkpoint("bert", "span"), "--at", 1, "--data", spans, "--task", "squad", *FAST)
    failed = cli("distill", *given, "-o", tmp_path / "m", "--lr", 1e9)
    assert "begin again with a lower learning rate than 1e+09" in failed.err
    assert failed.code == 1 and not (tmp_path / "m").exists()
    assert cli("distill", *given, "-o", tmp_path / "m").code == 0, "the run before is in the way"
    found = cli("tune", *given, "-o", tmp_path / "t.json", "--lr", 1e9, "--trials", 2, "--json")
    assert [trial["score"] for trial in found.json["trials"]] == [0.0, 0.0]


# Evaluating ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [None, 8])
def test_span_metrics_are_those_of_the_library(cli, checkpoint, spans, tmp_path, bits):
    model = Model.split(checkpoint("bert", "span"), at=2)
    model.save(tmp_path / "m")
    words = ("evaluate", "--task", "squad", "--data", spans, "--model", tmp_path / "m", "--json")
    found = cli(*words, *(("--codec-bits", bits) if bits else ())).json
    made = tokenise(read_pairs(spans), model.tokenizer, TASKS["squad"], train=False)
    want = measure(model.net, made, TASKS["squad"], How(bits=bits))
    if not bits:  # as a user gets them
        engine, pairs = Engine(model), list(read_pairs(spans))
        answers = [engine.ask(pair.query, 1, texts=[pair.passage]) for pair in pairs]
        texts = [answer[0].text if len(answer) else "" for answer in answers]
        golds = [[answer.text for answer in pair.answers] for pair in pairs]
        scores = [best_over(gold, text) for gold, text in zip(golds, texts, strict=True)]
        want = dict(zip(("exact", "f1"), (100 * np.mean(scores, 0)).tolist(), strict=True))
    assert found == {"task": "squad", "queries": 40, **{n: round(v, 4) for n, v in want.items()}}
    assert cli(*words, "--limit", 7).json["queries"] == 7


def test_a_missing_answer_counts_in_squad2(cli, checkpoint, tmp_path):
    rows = [{**row, "answers": []} for row in span_rows(6)]
    data = jsonl(tmp_path / "none.jsonl", rows)
    words = ("evaluate", "--data", data, "--model", checkpoint("bert", "span"), "--json", "--task")
    assert cli(*words, "squad2", "--threshold", -1e6).json["f1"] == 100
    assert cli(*words, "squad2", "--threshold", 1e6).json["f1"] == 0
    assert "threshold" not in cli(*words, "squad").json


def test_race_counts_questions(cli, checkpoint, race):
    words = ("evaluate", "--task", "race", "--model", checkpoint("bert", "choice"), "--json")
    found = cli(*words, "--data", race).json
    assert found["queries"] == 20 and found["accuracy"] % 5 == 0
    assert cli(*words, "--data", race, "--limit", 5).json["queries"] == 5


def test_classes_are_matched_by_name_not_by_number(cli, model, tmp_path):
    # Of each class another number, so that even a model with one answer to all shows a mix-up.
    labels = ["contradiction"] * 20 + ["entailment"] * 7 + ["neutral"] * 3
    rows = [
        {"premise": p.passage, "hypothesis": f"{p.query} castle", "label": label}
        for p, label in zip(span_pairs(30), labels, strict=True)
    ]
    named = jsonl(tmp_path / "named.jsonl", rows)
    numbers = {"contradiction": 0, "entailment": 1, "neutral": 2}
    counted = jsonl(tmp_path / "n.jsonl", [{**r, "label": numbers[r["label"]]} for r in rows])
    first = model("bert", "classes")
    first.save(tmp_path / "first")
    head, order = first.spec.head("classes"), [1, 2, 0]
    turned = replace(head, labels=tuple(head.labels[i].upper() for i in order))
    other = first.rebuild(replace(first.spec, heads=(turned,)), {})
    with torch.no_grad():
        for tensor in other.net.heads["classes"].out.parameters():
            tensor.copy_(tensor[order].clone())
    other.save(tmp_path / "other")
    scores = {
        (data.name, name): cli(
            "evaluate", "--task", "mnli", "--data", data, "--model", tmp_path / name, "--json"
        ).json["accuracy"]
        for data in (named, counted)
        for name in ("first", "other")
    }
    assert len(set(scores.values())) == 1, scores


def test_pairs_take_the_head_that_the_labels_ask_for(cli, checkpoint, model, spans, tmp_path):
    both = model("bert", "rank").with_heads(model("bert", "span").spec.head("span"), seed=1)
    both.save(tmp_path / "m")
    words = ("evaluate", "--task", "pairs", "--model", tmp_path / "m", "--json", "--data")
    assert {"f1", "exact"} <= cli(*words, spans).json.keys()
    grades = [
        {"query": f"the {word}", "passage": p.passage, "label": int(word in p.passage)}
        for word in ("moon", "king")
        for p in span_pairs(10)
    ]
    ranked = cli(*words, jsonl(tmp_path / "grades.jsonl", grades)).json
    assert ranked["queries"] == 2 and {"mrr@10", "ndcg@10"} <= ranked.keys()


def test_evaluation_mistakes_are_explained(cli, checkpoint, spans, tmp_path):
    words = ("evaluate", "--data", spans, "--model", checkpoint("bert", "rank"), "--task")
    assert "no 'span' head (it has: rank)" in cli(*words, "squad").failure
    assert "--task is 'chess'; choose one of squad" in cli(*words, "chess").failure
    assert "--codec-bits is 3; choose 8 or 4" in cli(*words, "squad", "--codec-bits", 3).failure
    classes = ("evaluate", "--data", spans, "--model", checkpoint("bert", "classes"), "--task")
    assert "tells 3 classes apart and the task 'boolq' has 2 (no, yes)" in (
        cli(*classes, "boolq").failure
    )
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert "empty.jsonl: no pairs were read" in (
        cli("evaluate", "--task", "squad", "--data", empty).failure
    )


def test_missing_data_fails_in_one_line_before_anything_heavy_loads():
    code = (
        "import sys, decoupled.cli as c\n"
        "sys.argv = ['decoupled', 'evaluate', '--task', 'squad', '--data', 'NONE.json']\n"
        "try: c.main()\n"
        "finally: sys.stdout.write(','.join({'torch', 'lance'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "error: NONE.json does not exist; check the path\n"
