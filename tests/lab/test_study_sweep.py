"""`sweep` and `layers` on tiny models: every task, resumed, trained, and refused where it must be."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from commands import Commands, jsonl
from decoupled.lab.study.sweep import Sweep, run_sweep
from decoupled.measure.pairs import Pair
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.model.states import States
from decoupled.train.data.prepare import tokenise
from decoupled.train.data.tasks import TASKS, task_for
from decoupled.train.evaluate import evaluate_examples
from decoupled.train.loop.checkpoint import read_lines
from decoupled.train.recipe import DEFORMER, override
from decoupled.train.reshape import with_projection
from toy import class_pairs, span_pairs


@pytest.fixture
def run(monkeypatch, capsys) -> Commands:
    return Commands(monkeypatch, capsys)


def span_rows(count: int = 20) -> list[dict]:
    return [
        {
            "id": pair.id,
            "question": pair.query,
            "context": pair.passage,
            "answers": {"text": [pair.answers[0].text], "answer_start": [pair.answers[0].start]},
        }
        for pair in span_pairs(count)
    ]


def planned(model: Model, pairs: list[Pair], task: str, **more: object) -> Sweep:
    chosen = task_for(task, pairs, model.spec.heads) if task == "pairs" else TASKS[task]
    made = tokenise(pairs, model.tokenizer, chosen, train=False)
    settings = {"rounds": 0, "about": {"kind": "sweep"}, **more}
    return Sweep(model=model, task=chosen, examples=made, **settings)


def choice_pairs() -> list[Pair]:
    found = []
    for number, pair in enumerate(span_pairs(6)):
        for option, word in enumerate(pair.passage.split()):
            label = int(word == pair.query)
            group = f"{number}-{pair.passage}"
            found.append(
                replace(pair, query=word, answers=(), label=label, id=f"{option}", group=group)
            )
    return found


def rank_pairs() -> list[Pair]:
    pairs = span_pairs(6)
    return [
        replace(p, passage=q.passage, answers=(), label=int(p is q), id=f"{p.id}-{q.id}")
        for p in pairs
        for q in pairs[:4]
    ]


@pytest.mark.parametrize(
    ("head", "pairs"),
    [("span", span_pairs(10)), ("choice", choice_pairs()), ("rank", rank_pairs())],
)
def test_every_task_is_swept(head, pairs, model, tmp_path):
    whole = model("bert", head)
    plan = planned(whole, pairs, "pairs")
    lines = run_sweep(plan, range(4), tmp_path / "s.jsonl")
    assert [line["split"] for line in lines] == [0, 1, 2, 3]
    assert lines[0]["agreement"] == 1 and lines[0]["flops"]["speedup"] == 1
    assert lines[0]["bytes"]["passage"] == 0 < lines[1]["bytes"]["passage"]
    speedups = [line["flops"]["speedup"] for line in lines]
    assert speedups == sorted(speedups) and speedups[-1] > 2
    for line in lines:
        split = Model.split(whole, at=line["split"])
        told = evaluate_examples(split.net, plan.examples, plan.task)
        assert line["score"] == pytest.approx(told[plan.task.metric], abs=1e-3)
        assert not line["trained"] and -1 <= line["agreement"] <= 1


def test_a_split_model_is_itself_at_its_own_split(model, tmp_path):
    own = with_projection(Model.split(model("bert", "span"), at=2), 8)
    plan = planned(own, span_pairs(10), "squad", rounds=1, candidates=2)
    other, line = run_sweep(plan, [1, 2], tmp_path / "s.jsonl")
    told = evaluate_examples(own.net, plan.examples, plan.task)
    assert line["score"] == pytest.approx(told["f1"], abs=1e-3)
    assert line["bytes"]["passage"] < other["bytes"]["passage"], "its projection was left out"
    assert set(line["latency_ms"]) == {"joint", "split"}


def test_classes_agree_with_themselves_and_are_timed(model, tmp_path):
    whole = model("bert", "classes", num_labels=2)
    plan = planned(whole, class_pairs(12), "boolq", rounds=2, candidates=3, codec="fp16")
    joint, split = run_sweep(plan, [0, 2], tmp_path / "s.jsonl")
    assert set(joint["latency_ms"]) == {"joint"} and set(split["latency_ms"]) == {"joint", "split"}
    assert split["latency_ms"]["split"]["rounds"] == 2 and split["candidates"] == 3
    assert split["bytes"]["passage"] == split["tokens"]["passage"] * 32 * 2


def test_a_model_that_says_the_same_of_all_pairs_is_marked(model, tmp_path):
    lines = []
    for bias in (0.0, 1e4):
        plan = planned(model("bert", "classes", num_labels=2), class_pairs(12), "boolq")
        with torch.no_grad():
            out = plan.joint.net.get_submodule("heads.classes.out")
            out.weight.mul_(1e3)  # so that random weights say both
            out.bias.copy_(torch.tensor([1e3 * bias, 0.0]))
        lines.append(run_sweep(plan, [0], tmp_path / f"{bias}.jsonl")[0])
    assert [line.get("constant") for line in lines] == [None, True]


def test_a_sweep_goes_on_where_it_was_cut(model, tmp_path):
    plan, out = planned(model("bert", "span"), span_pairs(8), "squad"), tmp_path / "s.jsonl"
    whole = run_sweep(plan, range(4), out)
    text = out.read_text()
    out.write_text(text[: text.index('"split": 2') + 5])
    assert [line["split"] for line in read_lines(out)] == [0, 1]
    fresh: dict[int, bool] = {}
    again = run_sweep(
        plan, range(4), out, on_split=lambda line, new: fresh.update({line["split"]: new})
    )
    assert fresh == {0: False, 1: False, 2: True, 3: True}
    assert again == whole and read_lines(out) == whole


def test_a_split_that_was_trained_but_not_judged_is_not_trained_again(model, tmp_path, monkeypatch):
    from decoupled.lab.study import sweep as study

    whole, pairs, lines = model("bert", "span"), span_pairs(12), []
    changes = {"optimiser.batch": 4, "watch.save_every": 2, "precision": "fp32"}
    recipe = override(DEFORMER, {**changes, "optimiser.epochs": 1.0})
    made = tokenise(pairs, whole.tokenizer, TASKS["squad"], train=True)
    budget = study.Training(examples=made, recipe=recipe, out=tmp_path / "run")
    plan = planned(whole, pairs, "squad", training=budget)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(study, "agreement", lambda *given: 1 / 0)
        study.measure_split(plan, 2, lines.append)
    assert lines and not lines.clear()
    run_sweep(plan, [0, 2], tmp_path / "s.jsonl", progress=lines.append)
    assert lines == [] and not list((tmp_path / "run").glob("*/checkpoint"))


# The command line ---------------------------------------------------------------------------------


def test_sweep_resumes_and_refuses_another_model(run, checkpoint, tmp_path):
    data = jsonl(tmp_path / "dev.jsonl", span_rows())
    out = tmp_path / "sweep.jsonl"
    source = checkpoint("bert", "span")
    words = ("sweep", source, "--data", data, "-o", out, "--task", "squad", "--rounds", 1)
    first = run(*words, "--splits", "1-2", "--json")
    assert [line["split"] for line in first.json["splits"]] == [0, 1, 2]
    table = run(*words)
    assert table.code == 0 and "agreement" in table.out
    assert "milliseconds of a query and 20 passages together" in table.out
    assert "split 1: f1" in table.err and "measured before" in table.err
    assert "decoupled lab report" in table.err
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["split"] for line in lines] == [0, 1, 2, 3]
    assert lines[3]["command"].startswith("decoupled sweep")
    other = run("sweep", checkpoint("electra", "span"), "--data", data, "-o", out)
    assert "holds a sweep with model=" in other.failure
    assert "limit=500, and this one has limit=7" in run(*words, "--limit", 7).failure
    for option, value, told in (
        ("--task", "pairs", "task='squad', and this one has task='pairs'"),
        ("--candidates", 3, "and this one has candidates=3"),
        ("--rounds", 2, "rounds=1, and this one has rounds=2"),
    ):
        assert told in run(*words, option, value).failure


def test_sweep_trains_every_split_on_request(run, checkpoint, tmp_path):
    data = jsonl(tmp_path / "dev.jsonl", span_rows(12))
    out = tmp_path / "sweep.jsonl"
    words = ["sweep", checkpoint("bert", "span"), "--data", data, "-o", out, "--rounds", 0]
    budget = ["--train", data, "--epochs", 3, "--batch", 4, "--lr", 1e-3, "--splits", "2"]
    trained = run(*words, *budget, "--json")
    assert "dev.jsonl is trained on and judged by, so the scores will be too good" in trained.err
    joint, split = trained.json["splits"]
    assert split["trained"] and not joint["trained"]
    assert split["training"]["optimiser"]["epochs"] == 3
    untrained = tmp_path / "plain.jsonl"
    words[5] = untrained
    plain = run(*words, "--splits", "2", "--json").json["splits"][1]
    assert plain["score"] != split["score"] and plain["flops"] == split["flops"]


def test_sweep_trains_the_classes_that_the_head_numbers(run, model, tmp_path, monkeypatch):
    from decoupled.lab.study import sweep as study

    whole = model("bert", "classes")
    head = replace(whole.spec.head("classes"), labels=("Neutral", "Contradiction", "Entailment"))
    whole.rebuild(replace(whole.spec, heads=(head,)), {}).save(tmp_path / "m")
    rows = [
        {"premise": pair.passage, "hypothesis": pair.query, "label": number % 3}
        for number, pair in enumerate(span_pairs(6))
    ]
    data, plans = jsonl(tmp_path / "train.jsonl", rows), []
    monkeypatch.setattr(study, "run_sweep", lambda plan, *rest, **more: plans.append(plan) or [])
    words = ("sweep", tmp_path / "m", "--task", "mnli", "--data", data, "--train", data)
    run(*words, "-o", tmp_path / "s", "--json")
    for made in (plans[0].examples, plans[0].training.examples):
        assert made.label[:, 0].tolist() == [1, 2, 0] * 2


def test_sweep_says_what_is_wrong(run, checkpoint, tmp_path):
    data = jsonl(tmp_path / "dev.jsonl", span_rows(4))
    bare = run("sweep", checkpoint("bert", "bare"), "--data", data, "-o", tmp_path / "s")
    assert "has no head" in bare.failure and "--recipe plain" in bare.failure
    words = ("sweep", checkpoint("bert", "span"), "--data", data, "-o", tmp_path / "s")
    for splits in ("x", "2-1"):
        assert "write 0,3,4 or 1-5" in run(*words, "--splits", splits).failure
    assert "split 9 is asked for" in run(*words, "--splits", "9").failure
    assert "there is no 'int9'" in run(*words, "--codec", "int9").failure
    assert "is a folder" in run(*words[:5], tmp_path).failure


def test_layers_writes_curves_and_compares_models(run, checkpoint, tmp_path):
    data, out = jsonl(tmp_path / "dev.jsonl", span_rows()), tmp_path / "layers.json"
    source = checkpoint("bert", "span")
    words = ("layers", source, "--data", data, "--passages", 6, "--queries", 3)
    found = run(*words, "-o", out, "--compare", f"same={source}", "--json").json
    assert json.loads(out.read_text()) == found and found["kind"] == "layers"
    assert found["distances"]["same"]["passage"] == pytest.approx([0] * 4, abs=1e-5)
    assert "variance" in run(*words).out
    assert "write NAME=MODEL" in run(*words, "--compare", "x").failure


def test_a_stored_passage_takes_the_bytes_that_its_codec_takes(model, tmp_path):
    whole = model("bert", "rank")
    plan = planned(whole, rank_pairs(), "rank", codec="project:8+int4")
    line = run_sweep(plan, [0, 1], tmp_path / "s.jsonl")[1]
    made = fit_codec("project:8+int4", States(np.eye(32, dtype=np.float32), np.asarray([32])))
    assert line["bytes"]["passage"] == line["tokens"]["passage"] * made.bytes_per_token
