"""One run of `suite.py`: start model, teacher, data, training, evaluation, result."""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from augment import combine, cropped, shuffled
from deeper import deepen
from presets import DATASETS, Place, Run, examples, opened, pairs_of, texts_of
from threshold import best_threshold

from decoupled import Model
from decoupled.lab.bench.report import commit
from decoupled.lab.study.layers import layer_curves
from decoupled.lab.study.paired import paired_difference
from decoupled.lab.tune import FIELDS, tune
from decoupled.methods.count import pair_macs, parameters, weight_bytes
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.methods.pretrain.pretrain import pretrain
from decoupled.methods.pretrain.settings import pretrain_recipe
from decoupled.methods.shrink import shrink_and_train
from decoupled.model.jsonable import to_json
from decoupled.model.tokens import Tokenizer
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import Prepared
from decoupled.train.data.tasks import Task
from decoupled.train.evaluate import (
    How,
    ScoredPairs,
    answers,
    evaluate_examples,
    judge,
)
from decoupled.train.loop.checkpoint import read_lines
from decoupled.train.loop.loop import Report
from decoupled.train.recipe import Recipe, override, recipe_named
from decoupled.train.reshape import with_projection
from decoupled.train.run import Data, Setting, train_model, with_head

SMOKE = {"optimiser.batch": 16, "optimiser.epochs": 1.0, "optimiser.tokens": None}
SMOKE |= {
    "projection.epochs": 0.5,
    "watch.log_every": 2,
    "precision": "fp32",
}
SMALL = {"rank=128": "rank=8", "size=8000": "size=300", "steps=200": "steps=2"}
SMALL |= {"width=192": "width=24", "width=288": "width=24", "steps=1000": "steps=2"}
"""Options of methods in the measure of a smoke run's model."""


def student_of(run: Run, place: Place, task: Task) -> Model:
    """The model to train, as the run describes it."""
    model = with_head(place.model(run.start, run.dataset), task, run.seed)
    if run.extra:
        model = deepen(model, run.extra)
    if run.split or run.positions or run.cross_embed != "none":
        how = {"positions": run.positions, "cross_embed": run.cross_embed}
        model = Model.split(model, at=run.split, one_way=run.one_way or (), **how)
    width = run.projection
    if width and place.smoke:
        width = max(4, width // 8)
    return with_projection(model, width) if width else model


def data_of(
    run: Run, place: Place, task: Task, tokenizer: Tokenizer | None = None
) -> tuple[Data, Examples]:
    """Training and tune examples, and the test set, as the run describes them."""
    train, test = (examples(place, run.dataset, part, tokenizer) for part in ("train", "test"))
    train, tune = train.divide(0.3 if place.smoke else run.held, seed=0)
    if run.limit:
        # Files are sorted by label or by school; the first rows would not be like the rest.
        drawn = np.random.default_rng(0).permutation(train.groups)[: run.limit]
        train = train.select(drawn)
    if task.head == "rank":
        tune = replace(tune, per_group=1, share="none")
    extra = []
    for kind, share in run.augment.items():
        count = max(1, int(share * len(train)))
        text = opened(place, run.dataset)[0].spec.text
        extra.append(
            shuffled(train, count, run.seed, null=task.null)
            if kind == "shuffled"
            else cropped(train, text, count, run.seed)
        )
    train = combine([train, *extra]) if extra else train
    return Data(task=task, train=train, tune=tune), test


def scores(
    model: Model, task: Task, data: Data, test: Examples, run: Run, place: Place
) -> dict[str, Any]:
    """Metrics on the test set at every width of code, and the tune split's own."""
    how = How(precision="bf16" if model.device.type == "cuda" else "fp32")
    if task.null:
        threshold = best_threshold(answers(model.net, data.tune, task, how), data.tune)
        how = replace(how, threshold=threshold)
    tune = evaluate_examples(model.net, data.tune, task, how)[task.metric]
    found: dict[str, Any] = {}
    for bits in run.bits:
        name = "fp" if bits is None else f"int{bits}"
        seen = judge(model.net, test, task, replace(how, bits=bits))
        found[name] = {**seen.metrics, **against(run, place, name, seen)}
    return {"tune": tune, "test": found}


def against(run: Run, place: Place, code: str, seen: ScoredPairs) -> dict[str, Any]:
    """What is lost against the joint model, question by question, with the interval of a paired bootstrap."""
    folder = place.folder(run.name)
    folder.mkdir(parents=True, exist_ok=True)
    if code == "fp":
        np.save(folder / "each.npy", seen.each.astype(np.float32))
    joint = run.teacher or run.start
    taught = place.result(joint)
    if taught is None or taught["run"]["dataset"] != run.dataset:
        return {}
    theirs = np.load(place.folder(joint) / "each.npy")
    lost, low, high = (round(100 * value, 3) for value in paired_difference(theirs, seen.each))
    return {"lost": {"against": joint, "mean": lost, "low": low, "high": high}}


def searched(run: Run, place: Place, progress: Callable[[Any], None]) -> dict[str, Any]:
    """A run that searches settings by `tune`, on some of the training pairs of its dataset."""
    started, task = time.perf_counter(), opened(place, run.dataset)[1]
    pairs = list(pairs_of(place.data, DATASETS[run.dataset], "train", 64 if place.smoke else None))
    drawn = np.random.default_rng(0).permutation(len(pairs))[: run.limit]
    recipe = override(recipe_named(run.recipe), {**run.set, **(SMOKE if place.smoke else {})})
    trials = tune(
        student_of(run, place, task),
        data=[pairs[n] for n in drawn],
        task=task.name,
        teacher=place.model(str(run.teacher), run.dataset),
        recipe=recipe,
        trials=6 if place.smoke else run.tune,
        journal=place.folder(run.name) / "journal.jsonl",
        progress=lambda trial, line: progress({"trial": trial, **line}),
    )
    return {
        "name": run.name,
        "test": {"best": trials[0].to_json()},
        "trials": [trial.to_json() for trial in trials],
        "pairs": {"train": len(drawn)},
        "recipe": to_json(recipe),
        "train_seconds": round(time.perf_counter() - started, 2),
    }


def layers_of(joint: Model, test: Examples, run: Run, place: Place) -> dict[str, Any]:
    """What the layers of a joint model do with both texts."""
    trained = {}
    for name in run.others:
        how = (place.result(name) or {})["run"]
        model = place.onto_gpu(place.model(name, run.dataset))
        trained[f"k={how['split']}, {how['curve']}"] = model
    found = layer_curves(joint, test, others=trained, passages=8 if place.smoke else 50)
    return {
        "kind": "layers",
        "model": run.start if run.others else run.name,
        "task": run.dataset,
        "command": f"{place.command} --only {run.name} --data DATA --base MINILM",
        **found.to_json(),
    }


def smaller(
    run: Run, place: Place, start: Model, recipe: Recipe, teacher: Model | None, setting: Setting
) -> tuple[Model, list[Report]]:
    """The start under the methods of the run, trained where the run says so."""
    task = opened(place, run.dataset)[1]
    texts = " ".join(run.shrink)
    for large, small in SMALL.items() if place.smoke else ():
        texts = texts.replace(large, small)
    methods = [parse(text) for text in texts.split()]

    @cache
    def data(tokenizer: Tokenizer) -> Data:
        return data_of(run, place, task, tokenizer)[0]

    sample = Prepared(task=task, read=lambda tokenizer: data(tokenizer).train)
    tune = Prepared(task=task, read=lambda tokenizer: data(tokenizer).tune)
    start = place.onto_gpu(start)
    if run.train:
        return shrink_and_train(
            start, methods, sample, recipe, tune=tune, teacher=teacher, setting=setting
        )
    for method in methods:
        start = apply(start, method, sample)
    return start, []


def learn_texts(run: Run, place: Place, progress: Callable[[Any], None]) -> dict[str, Any]:
    """A run that pre-trains: its model, and what was measured on texts that were set aside."""
    told, folder = run.pretrain, place.folder(run.name)
    passages, names = texts_of(place, run.dataset)
    small = {"precision": "fp32", "optimiser.batch": 4} if place.smoke else {}
    spec = folder / "shape.json" if "spec" in told else None
    if spec is not None:
        spec.write_text(json.dumps(told["spec"]), encoding="utf-8")
    made = pretrain(
        passages,
        out=folder / "model",
        objective=told["objective"],
        base=place.model("base", run.dataset),
        spec=spec,
        gazetteer=names if told["objective"] == "wklm" else None,
        steps=4 if place.smoke else told["steps"],
        recipe=pretrain_recipe(
            told["objective"],
            {"watch.save_every": 0, **told.get("set", {}), "seed": run.seed, **small},
        ),
        progress=progress,
    )
    lines = read_lines(folder / "model.run" / "log.jsonl")
    return {
        "name": run.name,
        "test": {**made.to_json(), "model": run.name},
        "train_seconds": lines[-1]["seconds"],
    }


def steady(reports: list[Report], lines: list[dict[str, Any]]) -> int | None:
    """Tokens a second in the second half of the last phase, when everything is compiled."""
    timed = [line for line in lines if "loss" in line and line["step"] >= reports[-1].steps / 2]
    if len(timed) < 2:
        return None
    steps, seconds = (timed[-1][name] - timed[0][name] for name in ("step", "seconds"))
    return round(reports[-1].tokens / reports[-1].steps * steps / seconds) if seconds else None


def summary(reports: list[Report], lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What all phases took together, for a table of runs."""
    seconds = sum(r.seconds for r in reports)
    busy = sum(r.model_seconds for r in reports)
    return {
        "steps": sum(r.steps for r in reports),
        "train_seconds": round(seconds, 2),
        "model_share": round(busy / seconds, 3) if seconds else 0.0,
        "tokens_per_second": round(sum(r.tokens for r in reports) / seconds) if seconds else 0,
        "steady_tokens_per_second": steady(reports, lines),
        "losses": reports[-1].losses if reports else {},
        "best": reports[-1].best if reports else None,
        "curve": [(line["step"], round(line["tune"], 2)) for line in lines if "tune" in line],
        "peak_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
        "device": str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "cpu",
    }


def execute(run: Run, place: Place, progress: Callable[[Any], None]) -> dict[str, Any]:
    """Do the run and write its result; returns the result."""
    started = time.perf_counter()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    if run.pretrain or run.tune:
        found = (learn_texts if run.pretrain else searched)(run, place, progress)
        found |= {"run": asdict(run), "commit": commit(), "torch": torch.__version__}
        found |= {"wall_seconds": round(time.perf_counter() - started, 2), "command": place.command}
        return written(place, run, found)
    task = opened(place, run.dataset)[1]
    settings = {**run.set, "seed": run.seed, **(SMOKE if place.smoke else {})}
    recipe = override(recipe_named(run.recipe), settings)
    if run.tuned:
        best = (place.result(run.tuned) or {})["test"]["best"]
        recipe = override(recipe, {field: best[name] for name, field in FIELDS.items()})
    student = student_of(run, place, task)
    data, test = data_of(run, place, task)
    teacher = place.model(run.teacher, run.dataset) if run.teacher else None
    ready = time.perf_counter()
    folder, reports = place.folder(run.name), []
    device = "cpu" if place.smoke else None
    setting = Setting(out=folder / "run", device=device, progress=progress)
    if run.shrink:
        student, reports = smaller(run, place, student, recipe, teacher, setting)
        data, test = data_of(run, place, task, student.tokenizer)
    elif run.train:
        student, reports = train_model(student, data, recipe, teacher=teacher, setting=setting)
    else:
        student = place.onto_gpu(student)
    trained = time.perf_counter()
    found = scores(student, task, data, test, run, place)
    if run.others or (run.train and run.start == "base" and not (run.split or run.shrink)):
        found["layers"] = layers_of(student, test, run, place)
    student.save(folder / "model")
    result = {
        "name": run.name,
        **found,
        "spec": to_json(student.spec),
        "parameters": parameters(student.spec),
        "weight_bytes": weight_bytes(student.spec),
        "macs": pair_macs(student.spec, 16, 128),
        **summary(reports, read_lines(folder / "run" / "log.jsonl")),
        "wall_seconds": round(time.perf_counter() - started, 2),
        "setup_seconds": round(ready - started, 2),
        "evaluate_seconds": round(time.perf_counter() - trained, 2),
        "pairs": {"train": len(data.train), "tune": len(data.tune), "test": len(test)},
        "start": run.start,
        "teacher": run.teacher,
        "run": asdict(run),
        "recipe": to_json(recipe),
        "command": f"{place.command} --data DATA --base MINILM",
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return written(place, run, result)


def written(place: Place, run: Run, result: dict[str, Any]) -> dict[str, Any]:
    """The result, kept whole or not at all."""
    draft = place.folder(run.name) / "result.draft"
    draft.write_text(json.dumps(result), encoding="utf-8")
    draft.rename(draft.with_suffix(".json"))
    return result
