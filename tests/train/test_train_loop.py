from __future__ import annotations

import inspect
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator, PartialState

import decoupled as dc
from decoupled.errors import InputError
from decoupled.measure.pairs import Pair
from decoupled.model.jsonable import to_json
from decoupled.model.model import Model
from decoupled.runtime.cpu import multiplies_halves
from decoupled.train import run
from decoupled.train.data.batches import Batches
from decoupled.train.data.prepare import tokenise
from decoupled.train.data.tasks import TASKS, Task
from decoupled.train.evaluate import evaluate_examples, pair_logits
from decoupled.train.loop import checkpoint, loop
from decoupled.train.loop.average import Average
from decoupled.train.loop.loop import Diverged
from decoupled.train.loop.optimiser import rate
from decoupled.train.objectives.adapt import ADAPT
from decoupled.train.objectives.base import read_recipe
from decoupled.train.recipe import (
    DECOUPLED,
    DEFORMER,
    DISTILL,
    PLAIN,
    RECIPES,
    Optimiser,
    override,
)
from decoupled.train.reshape import teacher_of, with_projection
from decoupled.train.run import Data, Setting, distill, train_model, with_head
from toy import class_pairs, span_pairs

FAST = {
    "precision": "fp32",
    "optimiser.lr": 2e-3,
    "optimiser.batch": 8,
    "optimiser.epochs": 2.0,
    "watch.log_every": 4,
}
TOY = Task(name="toy", head="classes", metric="accuracy", labels=("no", "yes"))
CPU = Setting(device="cpu")


def fresh(model) -> Model:
    """A tiny encoder with ordinary initial weights, which learns."""
    bare = model("bert", "bare")
    with torch.no_grad():
        for name, tensor in bare.net.named_parameters():
            if tensor.ndim > 1:
                generator = torch.Generator().manual_seed(len(name))
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.1)
            else:
                tensor.fill_(1.0 if "norm" in name and "weight" in name else 0.0)
    return bare


def toy_data(model: Model, count: int = 64) -> Data:
    made = tokenise(class_pairs(count), model.tokenizer, TOY, train=True)
    return Data(task=TOY, train=made)


@pytest.fixture(scope="module")
def learned(model):
    """A joint model that has learned the toy task, and how."""
    start = with_head(fresh(model), TOY)
    lines = []
    recipe = override(PLAIN, {**FAST, "optimiser.epochs": 25.0})
    data = toy_data(start)
    made, reports = train_model(
        start, data, recipe, setting=Setting(device="cpu", progress=lines.append)
    )
    return made, reports[0], lines, data


def test_the_loop_learns_a_toy_task(learned):
    made, report, lines, data = learned
    assert lines[-1]["loss"] < lines[0]["loss"] / 2
    assert evaluate_examples(made.net, data.train, TOY)["accuracy"] > 90
    assert report.steps == 200 and report.tokens > 0
    assert 0.5 < report.model_seconds / report.seconds <= 1


def test_distilling_recovers_what_a_split_loses(learned):
    joint, _, _, data = learned
    split = Model.split(joint, at=2)
    want = pair_logits(joint.net, data.train, TOY)
    before = np.abs(pair_logits(split.net, data.train, TOY) - want).mean()
    recipe = override(DEFORMER, {**FAST, "optimiser.epochs": 10.0})
    made, _ = train_model(split, data, recipe, teacher=teacher_of(split), setting=CPU)
    after = np.abs(pair_logits(made.net, data.train, TOY) - want).mean()
    assert after < before / 2
    assert evaluate_examples(made.net, data.train, TOY)["accuracy"] > 90


def test_a_recipe_by_its_name_sets_nothing_aside(model):
    pairs = [Pair(query="a river", passage=f"river {n}", label=n % 2) for n in range(4)]
    split = Model.split(model("bert", "rank"), at=1)
    made = distill(split, data=pairs)  # one query: nothing could be set aside
    assert made.history[-1] and made.spec == split.spec
    with pytest.raises(InputError, match="too few to set some aside"):
        distill(split, data=pairs, evaluations=1)


def test_distilling_recovers_what_one_way_layers_lose(learned):
    joint, _, _, data = learned
    one_way = Model.split(joint, at=1, one_way="auto")
    assert one_way.spec.one_way and not teacher_of(one_way).spec.one_way
    want = pair_logits(joint.net, data.train, TOY)
    before = np.abs(pair_logits(one_way.net, data.train, TOY) - want).mean()
    recipe = override(DEFORMER, {**FAST, "optimiser.epochs": 10.0})
    made, _ = train_model(one_way, data, recipe, teacher=teacher_of(one_way), setting=CPU)
    assert made.spec == one_way.spec
    assert np.abs(pair_logits(made.net, data.train, TOY) - want).mean() < before / 2
    assert evaluate_examples(made.net, data.train, TOY)["accuracy"] > 90


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - {"reader"}))
def test_each_preset_runs_through_the_public_functions(model, name):
    split = Model.split(model("bert", "span"), at=1)
    kept = {n: t.clone() for n, t in split.net.state_dict().items()}
    recipe = override(RECIPES[name], {**FAST, "optimiser.epochs": 1.0})
    made = distill(split, data=span_pairs(16), task="squad", recipe=recipe)
    tables = "add" if name == "decoupled" else "none"
    assert made.spec == replace(split.spec, cross_embed=tables)
    assert made.history[-1]["recipe"]["name"] == name
    assert any(not torch.equal(t, kept[n]) for n, t in made.net.state_dict().items())
    assert all(torch.equal(t, kept[n]) for n, t in split.net.state_dict().items())
    assert not made.net.training and all(p.requires_grad for p in made.net.parameters())


def test_adapting_is_no_recipe_for_the_pairs_of_one_task(model):
    recipe = override(ADAPT, {"precision": "fp32"})
    with pytest.raises(InputError, match=r"'adapt' learns from the texts of an index, .*; use `ad"):
        distill(model("bert", "span"), data=span_pairs(8), recipe=recipe)
    with pytest.raises(InputError, match="recipe 'reader' is unknown; choose one of distill"):
        distill(model("bert", "span"), data=span_pairs(8), recipe="reader")


def test_training_on_labels_adds_the_head_and_saves(model, tmp_path):
    recipe = override(PLAIN, {**FAST, "optimiser.epochs": 1.0, "watch.evaluations": 1})
    pairs = class_pairs(24)
    made = distill(fresh(model), data=iter(pairs), recipe=recipe, out=tmp_path / "m")
    assert made.spec.head("classes").labels == ("no", "yes")
    again = Model.load(tmp_path / "m")
    for name, tensor in made.net.state_dict().items():
        assert torch.equal(tensor, again.net.state_dict()[name])
    lines = [json.loads(line) for line in (tmp_path / "m.run/log.jsonl").read_text().splitlines()]
    assert any({"step", "lr", "loss", "task"} <= line.keys() for line in lines)
    assert sum("tune" in line for line in lines) == 1


class Stop(Exception):
    pass


@pytest.mark.parametrize("dies_at", [4, 6, 11])
def test_a_resumed_run_ends_with_the_same_bits(model, tmp_path, dies_at):
    split = Model.split(with_head(model("bert", "bare"), TOY), at=2)
    squeezed = with_projection(split, 16)
    data = toy_data(squeezed, 40)
    settings = {**FAST, "squeeze.epochs": 1.0, "watch.log_every": 1, "watch.save_every": 3}
    recipe = override(DECOUPLED, {**settings, "optimiser.epochs": 1.6})
    teacher = teacher_of(squeezed)

    def run(folder, progress=None) -> Model:
        setting = Setting(device="cpu", out=folder, progress=progress)
        return train_model(squeezed, data, recipe, teacher=teacher, setting=setting)[0]

    whole = run(tmp_path / "whole")
    seen = []

    def die(line) -> None:
        seen.append(line)
        if len(seen) == dies_at:
            raise Stop

    with pytest.raises(Stop):
        run(tmp_path / "cut", die)
    resumed = run(tmp_path / "cut", seen.append)
    assert len(seen) < dies_at + 13, "it began again instead of going on"
    for name, tensor in whole.net.state_dict().items():
        assert torch.equal(tensor, resumed.net.state_dict()[name]), name


def test_a_model_that_could_not_be_saved_need_not_be_trained_again(model, tmp_path, monkeypatch):
    out, lines = tmp_path / "m", []
    start = with_head(model("bert", "bare"), TOY)
    changes = {"watch.save_every": 3, "watch.evaluations": 2}
    given = {"data": class_pairs(40), "recipe": override(PLAIN, {**FAST, **changes}), "out": out}

    def full(*given, **more) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(Model, "save", full)
        distill(start, **given)
    made = distill(start, **given, progress=lines.append)
    assert lines == [] and checkpoint.load(Path(f"{out}.run")) is None
    for name, tensor in distill(start, **{**given, "out": None}).net.state_dict().items():
        assert torch.equal(tensor, made.net.state_dict()[name]), name


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU bf16 and other intervals suit")
def test_a_named_recipe_suits_the_machine_and_goes_on(model, tmp_path, monkeypatch):
    split, steps = Model.split(model("bert", "span"), at=1), []
    monkeypatch.setattr(loop, "SAVE_EVERY", {"cpu": 2})
    changes = {**FAST, "precision": "bf16", "watch.log_every": 1}
    monkeypatch.setitem(RECIPES, "distill", override(DISTILL, changes))

    def told(line) -> None:
        steps.append(line["step"])
        if len(steps) == 4:
            raise Stop

    given = {"data": span_pairs(24), "task": "squad", "out": tmp_path / "m", "progress": told}
    given["evaluations"] = 0
    with pytest.raises(Stop):
        distill(split, **given)
    made = distill(split, **given)
    assert steps[:5] == [1, 2, 3, 4, 3]
    precision = "bf16" if multiplies_halves() else "fp32"
    assert made.history[-1]["recipe"]["precision"] == precision


def test_a_checkpoint_of_another_run_is_refused(model, tmp_path):
    start = with_head(model("bert", "bare"), TOY)
    recipe = override(PLAIN, {**FAST, "watch.save_every": 2, "watch.log_every": 3})
    data = toy_data(start, 40)

    def die(line) -> None:
        raise Stop

    with pytest.raises(Stop):
        train_model(start, data, recipe, setting=Setting(out=tmp_path, device="cpu", progress=die))
    assert checkpoint.load(tmp_path)[1]["step"] == 2
    longer = override(recipe, {"optimiser.epochs": 3.0})
    with pytest.raises(InputError, match=r"of a run of 10 steps, and this one has 15; train with"):
        train_model(start, data, longer, setting=Setting(out=tmp_path, device="cpu"))
    other = override(recipe, {"optimiser.lr": 1e-4, "watch.evaluations": 1})
    changed = replace(data, train=replace(data.train, label=data.train.label[::-1].copy()))
    deeper = Model.split(start, at=1)
    for name, given in (
        ("recipe", (start, data, other)),
        ("set of examples", (start, changed, recipe)),
        ("model", (deeper, data, recipe)),
    ):
        with pytest.raises(InputError, match=f"of a run with another {name}; train with the same"):
            train_model(*given, setting=Setting(out=tmp_path, device="cpu"))
    checkpoint.save(tmp_path / "new" / "place", {"a": torch.ones(1)}, {"step": 7})
    assert checkpoint.load(tmp_path / "new" / "place")[1]["step"] == 7
    (tmp_path / "checkpoint/checkpoint.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot be read .*; delete it to start afresh"):
        checkpoint.load(tmp_path)


def test_the_first_phase_moves_the_projection_alone(model):
    split = Model.split(with_head(model("bert", "bare"), TOY), at=2)
    squeezed = with_projection(split, 8)
    data = toy_data(squeezed, 32)
    kept = {n: t.clone() for n, t in squeezed.net.state_dict().items()}
    still = override(
        DECOUPLED,
        {**FAST, "optimiser.lr": 1e-12, "optimiser.decay": 0.0, "squeeze.start": "random"},
    )
    still = override(still, {"tables": "none"})
    recipe = override(still, {"squeeze.epochs": 2.0})
    lines = []
    setting = Setting(device="cpu", progress=lines.append)
    made, reports = train_model(
        squeezed, data, recipe, teacher=teacher_of(squeezed), setting=setting
    )
    assert [line["phase"] for line in lines] == ["codec", "codec", "train", "train"]
    assert lines[1]["reconstruction"] < lines[0]["reconstruction"]
    for name, tensor in made.net.state_dict().items():
        moved = (tensor - kept[name]).abs().max() > 1e-4
        assert moved == name.startswith("projection."), name
    one = override(still, {"squeeze.phases": 1, "squeeze.bits": 4})
    made, reports = train_model(squeezed, data, one, teacher=teacher_of(squeezed), setting=CPU)
    assert (squeezed.spec.codec, made.spec.codec) == ("int8", "int4")
    assert len(reports) == 1 and "reconstruction" in reports[0].losses


def test_a_learned_projection_goes_on_as_it_is(model):
    split = Model.split(with_head(model("bert", "bare"), TOY), at=2)
    data, lines = toy_data(split, 32), []
    first = override(PLAIN, {**FAST, "optimiser.lr": 1e-3})
    learned, _ = train_model(with_projection(split, 8), data, first, setting=CPU)
    still = override(PLAIN, {**FAST, "optimiser.lr": 1e-12, "optimiser.decay": 0.0})
    for start, phases in ((learned, {"train"}), (with_projection(learned, 6), {"codec", "train"})):
        lines.clear()
        setting = Setting(device="cpu", progress=lines.append)
        again, _ = train_model(start, data, still, setting=setting)
        assert {line["phase"] for line in lines} == phases
        name = "projection.down.weight"
        before, after = (made.net.state_dict()[name] for made in (start, again))
        assert torch.allclose(before, after, atol=1e-6) == (start is learned)


@pytest.mark.parametrize("asked", [1, 4, 7, 50])
def test_a_run_is_judged_as_often_as_asked_and_in_the_end(certain, asked):
    lines, data = [], toy_data(certain, 56)
    recipe = override(PLAIN, {**FAST, "optimiser.epochs": 1.0, "watch.evaluations": asked})
    told = Setting(device="cpu", progress=lines.append)
    train_model(certain, replace(data, tune=data.train), recipe, setting=told)
    steps = [line["step"] for line in lines if "tune" in line]
    assert steps[-1] == 7 and len(steps) == min(asked, 7)


def test_patience_counts_the_judgements_since_the_best(certain, monkeypatch):
    scores = iter([1.0, 3.0, 2.0, 2.5, 4.0, 0.0, 0.0])
    judge = run._judge
    monkeypatch.setattr(run, "_judge", lambda *given: judge(*given) and (lambda: next(scores)))
    data = toy_data(certain, 56)
    watch = {"watch.evaluations": 7, "watch.patience": 2}
    recipe = override(PLAIN, {**FAST, "optimiser.epochs": 1.0, **watch})
    begun = time.perf_counter()
    _, (report,) = train_model(certain, replace(data, tune=data.train), recipe, setting=CPU)
    assert (report.best, report.best_step, report.steps, report.stopped_early) == (3.0, 2, 4, True)
    assert 0 < report.model_seconds <= report.seconds < time.perf_counter() - begun
    _, (report,) = train_model(certain, data, override(recipe, {"watch.patience": 0}), setting=CPU)
    assert (report.best, report.best_step, report.stopped_early) == (None, 0, False)


def test_early_stop_keeps_the_best_weights(model):
    start = with_head(model("bert", "bare"), TOY)
    data = toy_data(start, 48)
    train, tune = data.train.divide(0.25)
    changes = {"optimiser.lr": 0.5, "watch.evaluations": 8, "watch.patience": 2}
    recipe = override(PLAIN, {**FAST, "optimiser.epochs": 8.0, **changes})
    made, (report,) = train_model(
        start, Data(task=TOY, train=train, tune=tune), recipe, setting=CPU
    )
    assert report.stopped_early and report.best_step < report.steps
    assert evaluate_examples(made.net, tune, TOY)["accuracy"] == pytest.approx(report.best)


@pytest.mark.parametrize("every", [1, 50])
def test_a_run_that_diverges_stops_and_is_forgotten(model, tmp_path, every):
    start = with_head(model("bert", "bare"), TOY)
    changes = {"optimiser.lr": 1e9, "watch.log_every": every, "watch.save_every": 1}
    recipe = override(PLAIN, {**FAST, **changes})
    setting = Setting(device="cpu", out=tmp_path)
    with pytest.raises(
        Diverged, match=r"diverged at step 2 of 10 \(loss nan, task nan\); begin again"
    ):
        train_model(start, toy_data(start, 40), recipe, setting=setting)
    assert checkpoint.load(tmp_path) is None


@pytest.fixture
def certain(model) -> Model:
    """A model with a head and no dropout."""
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return with_head(model("bert", "bare", **still), TOY)


@pytest.mark.parametrize("together", [3, 8])
def test_gradient_accumulation_is_a_larger_batch(certain, together):
    """An epoch of three batches is one update, though eight would fit into it."""
    data = toy_data(certain, 24)
    # With a larger epsilon, gradients that are 0 but for rounding do not move a weight.
    changes = {"optimiser.epochs": 2.0, "optimiser.epsilon": 1e-3, "optimiser.clip": 0.0}
    if together > 3:
        changes["optimiser.epochs"] = 1.0

    def trained(name: str, value: int) -> tuple[dict[str, torch.Tensor], int]:
        recipe = override(PLAIN, {**FAST, **changes, f"optimiser.{name}": value})
        made, (report,) = train_model(certain, data, recipe, setting=CPU)
        return made.net.state_dict(), report.steps

    (ours, many), (theirs, few) = trained("accumulate", together), trained("batch", 24)
    assert many == 3 * few
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-5, msg=name)
    assert any((theirs[n] - t).abs().max() > 1e-3 for n, t in certain.net.state_dict().items())


def test_the_last_batches_are_an_update_with_its_own_rate(certain, monkeypatch):
    rates: list[float] = []
    step = torch.optim.AdamW.step

    def update(self, *given):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *given)

    monkeypatch.setattr(torch.optim.AdamW, "step", update)
    changes = {"optimiser.epochs": 1.0, "optimiser.warmup": 0.0, "optimiser.accumulate": 2}
    train_model(certain, toy_data(certain, 24), override(PLAIN, {**FAST, **changes}), setting=CPU)
    assert rates == pytest.approx([2e-3, 1e-3])


@pytest.mark.parametrize("dies_at", [3, 5, 6])
def test_a_run_that_accumulates_goes_on_at_an_update(certain, tmp_path, dies_at):
    data = toy_data(certain, 56)
    changes = {"watch.log_every": 1, "watch.save_every": 3, "optimiser.accumulate": 2}
    recipe = override(PLAIN, {**FAST, **changes, "optimiser.epochs": 1.0})

    def die(line) -> None:
        if line["step"] == dies_at:
            raise Stop

    def run(folder, progress=None) -> Model:
        setting = Setting(device="cpu", out=folder, progress=progress)
        return train_model(certain, data, recipe, setting=setting)[0]

    with pytest.raises(Stop):
        run(tmp_path / "cut", die)
    assert checkpoint.load(tmp_path / "cut")[1]["step"] == dies_at // 4 * 4
    resumed, whole = run(tmp_path / "cut"), run(tmp_path / "whole")
    for name, tensor in whole.net.state_dict().items():
        assert torch.equal(tensor, resumed.net.state_dict()[name]), name


@pytest.mark.skipif(
    "ONEDNN_MAX_CPU_ISA" not in os.environ,
    reason="bf16 kernels may kill the process on CPUs that only claim AMX; cap the ISA to run this",
)
def test_bf16_runs_on_a_cpu_too(model):
    start = with_head(model("bert", "bare"), TOY)
    recipe = override(PLAIN, {**FAST, "precision": "bf16", "optimiser.epochs": 0.5})
    made, _ = train_model(start, toy_data(start, 16), recipe, setting=CPU)
    assert all(t.dtype == torch.float32 for t in made.net.state_dict().values())


def test_the_rate_rises_then_falls_on_the_line_from_step_zero():
    settings = Optimiser(lr=1.0, warmup=0.2)
    assert [rate(step, 10, settings) for step in range(10)] == pytest.approx(
        [0.5, 1.0, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    )


def test_the_rate_may_fall_as_a_cosine():
    settings = Optimiser(lr=1.0, warmup=0.2, schedule="cosine")
    found = [rate(step, 10, settings) for step in range(11)]
    assert found[:3] == [0.5, 1.0, 1.0] and found[6] == pytest.approx(0.5)
    assert found[4] + found[8] == pytest.approx(1.0) and found[10] == pytest.approx(0.0)


@pytest.mark.parametrize("tokens", [None, 200])
def test_batches_cover_every_example_once(model, tokens):
    start = model("bert", "span")
    made = tokenise(span_pairs(37), start.tokenizer, TASKS["squad"], train=True)
    batches = Batches(made, torch.device("cpu"), pad=0)
    first, second = (batches.epoch(3, n, size=5, tokens=tokens) for n in (0, 1))
    assert sorted(np.concatenate(first)) == list(range(37))
    assert [b.tolist() for b in first] != [b.tolist() for b in second]
    again = batches.epoch(3, 0, size=5, tokens=tokens)
    assert [b.tolist() for b in first] == [b.tolist() for b in again]
    assert sorted(np.concatenate(batches.ordered(100))) == list(range(37))
    for groups, batch in zip(first, batches.walk(first), strict=True):
        for place, row in enumerate(groups):
            ids = batch.passage_ids[place][batch.passage_real[place]]
            assert ids.tolist() == made.passages[made.passage_of[row]].tolist()
        if tokens:
            assert batch.query_ids.numel() + batch.passage_ids.numel() <= tokens


@pytest.mark.parametrize("task", ["rank", "race", "squad"])
def test_real_tokens_are_counted_and_shared_texts_once(model, task):
    pairs = [
        Pair(query="river" + " king" * (n // 4), passage="moon " * (n + 1), label=int(n % 4 == 0))
        for n in range(16)
    ]
    pairs = [replace(pair, group=pair.query) for pair in pairs]
    made = tokenise(pairs, model("bert", "bare").tokenizer, TASKS[task], train=True)
    batches = Batches(made, torch.device("cpu"), pad=0)
    found = batches.epoch(0, 0, size=2, tokens=None)
    for groups, batch in zip(found, batches.walk(found), strict=True):
        real = int(batch.query_real.sum()) + int(batch.passage_real.sum())
        assert batches.tokens(groups) == real


def test_one_process_of_several_writes(certain, tmp_path, monkeypatch):
    recipe = override(PLAIN, {**FAST, "watch.save_every": 2, "optimiser.epochs": 1.0})
    given = {"data": class_pairs(24), "recipe": recipe, "out": tmp_path / "m"}
    distill(certain, **given)
    before = (tmp_path / "m/weights.safetensors").stat().st_mtime_ns
    (tmp_path / "m.run/checkpoint.new").mkdir()
    with monkeypatch.context() as patch:
        for kind in (Accelerator, PartialState):
            patch.setattr(kind, "is_main_process", property(lambda self: False))
        distill(certain, **given)
        data, setting = toy_data(certain, 16), Setting(device="cpu", out=tmp_path / "m.run")
        train_model(certain, data, recipe, setting=setting)
    assert (tmp_path / "m/weights.safetensors").stat().st_mtime_ns == before
    assert (tmp_path / "m.run/checkpoint.new").exists(), "another process may be writing it"


def test_fewer_batches_than_processes_are_refused(certain, monkeypatch):
    monkeypatch.setattr(Accelerator, "num_processes", property(lambda self: 3))
    with pytest.raises(InputError, match="has 2 batches for 3 processes; use fewer processes"):
        train_model(certain, toy_data(certain, 16), override(PLAIN, FAST), setting=CPU)


def test_recipes_are_json_both_ways_and_refuse_nonsense():
    for recipe in RECIPES.values():
        assert read_recipe(json.loads(json.dumps(to_json(recipe)))) == recipe
    with pytest.raises(InputError, match=r"'weights.kdd' is no field|'kdd' is no field"):
        override(PLAIN, {"weights.kdd": 1})
    with pytest.raises(InputError, match=r"lr=0\.0; choose a number above 0"):
        override(PLAIN, {"optimiser.lr": 0.0})
    with pytest.raises(InputError, match="bits=3; choose 8, 4 or none"):
        override(PLAIN, {"squeeze.bits": 3})
    with pytest.raises(
        InputError, match="recipe 'x' is unknown; choose one of distill, plain, deformer"
    ):
        distill_unknown()


def distill_unknown() -> None:
    from decoupled.train.recipe import recipe_named

    recipe_named("x")


def test_the_default_weighs_the_losses_as_the_published_figures_do():
    presets = json.loads(
        (Path(__file__).parents[2] / "examples/experiments/presets.json").read_text()
    )
    assert override(DISTILL, presets["sets"]["kdlrs"]) == DISTILL
    for function in (dc.distill, dc.tune, dc.sweep):
        assert inspect.signature(function).parameters["recipe"].default == DISTILL.name


def test_a_recipe_that_needs_a_teacher_says_so(model):
    start = with_head(model("bert", "bare"), TOY)
    recipe = override(DEFORMER, FAST)
    with pytest.raises(
        InputError, match=r"'deformer' needs a teacher; give one, or use the recipe"
    ):
        train_model(start, toy_data(start, 16), recipe, setting=CPU)


def test_labels_that_do_not_fit_the_task_are_refused(model):
    start = model("bert", "bare")
    pairs = [Pair(query="a", passage="b", label="maybe", id="x7")]
    with pytest.raises(InputError, match=r"x7.*has label 'maybe'; expected one of no, yes or its"):
        tokenise(pairs, start.tokenizer, TOY, train=True)


# Averages and clocks ------------------------------------------------------------------------------


def test_weights_are_their_average_within_a_block_and_themselves_after_it():
    own = torch.tensor([2.0])
    average = Average([own], 0.5)
    own.fill_(4.0)
    average.update(100)
    with average.swapped():
        assert own.item() == 3.0
    assert own.item() == 4.0
    average.update(0)
    assert average.tensors()["mean.0"].item() == pytest.approx(0.1 * 3.0 + 0.9 * 4.0)


def test_the_average_of_the_weights_is_what_a_run_ends_with(certain):
    start, data = certain, toy_data(certain)
    ends = []
    for ema in (0.0, 0.9):
        recipe = override(PLAIN, {**FAST, "optimiser.ema": ema})
        made, _ = train_model(start, data, recipe, setting=CPU)
        ends.append({n: t.clone() for n, t in made.net.state_dict().items()})
    begun = start.net.state_dict()
    moved = [sum(float((end[n] - begun[n]).norm()) for n in begun) for end in ends]
    assert 0 < moved[1] < moved[0], "it lags behind the last weights"


def test_an_averaged_run_goes_on_with_the_same_average(certain, tmp_path):
    start, data = certain, toy_data(certain)
    recipe = override(PLAIN, {**FAST, "optimiser.ema": 0.9, "watch.save_every": 2})
    whole, _ = train_model(start, data, recipe, setting=CPU)

    def die(line):
        raise KeyboardInterrupt

    work = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        setting = Setting(out=work, device="cpu", progress=die)
        train_model(start, data, recipe, setting=setting)
    again, _ = train_model(start, data, recipe, setting=Setting(out=work, device="cpu"))
    ours, theirs = again.net.state_dict(), whole.net.state_dict()
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)


def test_a_run_ends_by_the_clock_and_its_rate_falls_with_it(certain, monkeypatch):
    start, data = certain, toy_data(certain)
    data = replace(data, tune=data.train)
    now = iter(range(0, 100_000, 1))
    monkeypatch.setattr(loop.time, "perf_counter", lambda: next(now))
    lines = []
    recipe = override(PLAIN, {**FAST, "optimiser.epochs": 1000.0, "watch.log_every": 1})
    recipe = override(recipe, {"optimiser.minutes": 2.0, "watch.evaluations": 2})
    setting = Setting(device="cpu", progress=lines.append)
    _, (report,) = train_model(start, data, recipe, setting=setting)
    assert 5 < report.steps < 60, "each look at the clock takes a second"
    rates = [line["lr"] for line in lines if "lr" in line]
    assert max(rates) < FAST["optimiser.lr"] and rates[-1] < max(rates) / 3
    judged = [line["step"] for line in lines if "tune" in line]
    assert len(judged) == 2 and judged[-1] == report.steps, "half-way, and where the time ends"
    assert lines[-1]["total"] == pytest.approx(report.steps, abs=2)
