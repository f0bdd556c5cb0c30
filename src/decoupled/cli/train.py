"""`distill` and `tune`: win back what a split loses, and find the weights of the losses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.errors import DecoupledError, InputError, need

if TYPE_CHECKING:
    from decoupled.index.documents import Pair
    from decoupled.train.recipe import Recipe

BEST = 10
"""Trials that are shown."""


def distill(
    model: opt.Source,
    output: opt.NewModel,
    data: opt.TrainingData,
    task: opt.TaskName = "pairs",
    teacher: opt.Teacher = None,
    recipe: Annotated[
        str, Option(help="deformer, decoupled, or plain for the labels alone.")
    ] = "deformer",
    epochs: opt.Epochs = None,
    batch: opt.Batch = None,
    lr: opt.Rate = None,
    projection: opt.Projection = None,
    at: opt.At = None,
    one_way: Annotated[
        str | None,
        Option("--one-way", help="Layers where only the query advances: auto, or 4-6, or 4,5."),
    ] = None,
    seed: opt.Seed = 0,
    evaluations: Annotated[
        int,
        Option(
            min=0, help="Times that a tenth of the data judges the weights; 0 trains on all of it."
        ),
    ] = 4,
    settings: opt.Sets = None,
    on_error: opt.OnError = "stop",
    as_json: opt.Json = False,
) -> None:
    """Train a split model to say what its teacher says. Run it again after Ctrl-C: it goes on."""
    from decoupled.model.folder import check_free

    changes = opt.recipe_changes(settings, epochs=epochs, batch=batch, lr=lr, seed=seed)
    changes = {"watch.evaluations": evaluations, **changes}
    check_free(output)
    told = {"model": model, "data": data, "task": task, "teacher": teacher, "at": at}
    told |= {"projection": projection, "recipe": recipe, "one_way": one_way}
    pairs = _pairs(told, changes, on_error)
    from decoupled.train.reshape import open_models
    from decoupled.train.run import finetune

    student, guide = open_models(told, opt.one_way_layers(one_way))
    chosen = dc.recipe(recipe, changes, pairs=len(pairs))
    begin(output, told, chosen, len(pairs))
    options: dict[str, Any] = {"data": pairs, "task": task, "recipe": chosen, "out": output}
    with watched(output) as bar:
        if recipe == "plain" and guide is None:
            finetune(student, progress=bar.told, **options)
        else:
            dc.distill(student, teacher=guide, progress=bar.told, **options)
    facts = _facts(output, told, pairs, student)
    if as_json:
        printing.document(facts)
    scored = facts["tune"] is not None
    score = f"; {facts['metric']} {facts['tune']:.2f} on the tune split" if scored else ""
    printing.note(f"{output}: trained {facts['steps']} steps in {facts['seconds']:.0f} s{score}")


def _facts(
    output: Path, told: dict[str, Any], pairs: list[Pair], student: dc.Model
) -> dict[str, Any]:
    """What was made, and its score on the tune split; the log also knows what was before a stop."""
    from decoupled.train.checkpoint import read_lines, work_folder
    from decoupled.train.data.tasks import task_for

    log = work_folder(output) / "log.jsonl"
    lines = read_lines(log)
    scores = [line["tune"] for line in lines if "tune" in line]
    return {
        "model": str(output),
        "task": told["task"],
        "recipe": told["recipe"],
        "pairs": len(pairs),
        "steps": lines[-1]["step"],
        "seconds": lines[-1]["seconds"],
        "metric": task_for(told["task"], pairs, student.spec.heads).metric,
        "tune": round(max(scores), 4) if scores else None,
        "log": str(log),
    }


def tune(
    model: opt.Source,
    output: Annotated[Path, Option("--output", "-o", help="JSON file of the trials.")],
    data: opt.TrainingData,
    task: opt.TaskName = "pairs",
    trials: Annotated[int, Option(min=1, help="Trials in all, earlier ones included.")] = 50,
    plot: Annotated[Path | None, Option(help="Picture of the trials to write.")] = None,
    teacher: opt.Teacher = None,
    epochs: opt.Epochs = None,
    batch: opt.Batch = None,
    lr: opt.Rate = None,
    projection: opt.Projection = None,
    at: opt.At = None,
    seed: opt.Seed = 0,
    settings: opt.Sets = None,
    on_error: opt.OnError = "stop",
    as_json: opt.Json = False,
) -> None:
    """Search the weights of the losses; a tenth of the data judges. Run it again: it goes on."""
    need(("optuna", "train"), *((("matplotlib", "plots"),) if plot else ()))
    changes = opt.recipe_changes(settings, epochs=epochs, batch=batch, lr=lr, seed=seed)
    changes |= {"watch.evaluations": 1, "watch.save_every": 0}
    if output.is_dir():
        raise InputError(f"{output} is a folder; name a JSON file to write")
    told = {"model": model, "data": data, "task": task, "teacher": teacher, "at": at}
    told |= {"projection": projection, "recipe": "deformer"}
    pairs = _pairs(told, changes, on_error)
    from decoupled.train import tune as search
    from decoupled.train.checkpoint import same_run, work_folder
    from decoupled.train.reshape import open_models

    student, guide = open_models(told)
    chosen = dc.recipe("deformer", changes, pairs=len(pairs))
    journal = work_folder(output) / "journal.jsonl"
    if same_run(journal.parent, told, chosen, unfinished=journal.name):
        printing.note(f"going on with the run in {journal.parent}")
    done = len(search.read_journal(journal))
    with printing.training_bar() as bar:
        try:
            ranked = dc.tune(
                student,
                data=pairs,
                task=task,
                teacher=guide,
                recipe=chosen,
                trials=trials,
                journal=journal,
                progress=lambda trial, line: bar.told(line, f"trial {trial} of {trials}, "),
            )
        except KeyboardInterrupt:
            raise DecoupledError(
                f"stopped after {len(search.read_journal(journal))} of {trials} trials; run the same "
                "command to go on"
            ) from None
    if plot is not None:
        search.plot(ranked, plot)
    rows = [
        {**dict(zip(search.NAMES, trial.weights, strict=True)), "score": round(trial.score, 4)}
        for trial in ranked
    ]
    result = {"model": model, "task": task, "best": rows[0], "trials": rows}
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    printing.result(result, as_json, lambda _: _show_trials(rows, len(rows) - done))
    best = " ".join(f"--set weights.{name}={rows[0][name]}" for name in search.NAMES)
    printing.note(f"train with the best: decoupled distill {model} … {best}")


def begin(output: Path, told: dict[str, Any], recipe: Recipe, pairs: int) -> None:
    """Refuse an unfinished run of other settings; say that one begins or goes on, and where its log is."""
    from decoupled.train.checkpoint import same_run, work_folder

    work = work_folder(output)
    if same_run(work, told, recipe):
        printing.note(f"going on with the run in {work}")
    printing.note(f"{pairs} pairs; the log is {work / 'log.jsonl'}")


@contextmanager
def watched(output: Path) -> Iterator[printing.TrainingBar]:
    """A bar for a run; after Ctrl-C it is said where the run was, and from where it goes on."""
    from decoupled.train.checkpoint import stopped_at, work_folder

    with printing.training_bar() as bar:
        try:
            yield bar
        except KeyboardInterrupt:
            at = stopped_at(work_folder(output))
            rest = (
                f"; run the same command to go on from {at}"
                if at
                else ", without a checkpoint; run the same command to begin again"
            )
            raise DecoupledError(f"stopped {bar.place}{rest}") from None


def _pairs(told: dict[str, Any], changes: dict[str, Any], on_error: str) -> list[Pair]:
    """Everything that can be wrong before a model is loaded; the pairs."""
    from decoupled.train.data.tasks import check_task
    from decoupled.train.recipe import override, recipe_named

    check_task(told["task"])
    opt.one_way_layers(told.get("one_way"))
    override(recipe_named(told["recipe"]), changes)
    if told["teacher"] == told["model"] and told["at"] is None:
        raise InputError(
            f"--teacher is the model itself ({told['model']}); name another, or leave it out"
        )
    pairs = opt.read_data(told["data"], on_error)
    opt.need_torch(("accelerate", "train"))
    return pairs


def _show_trials(rows: list[dict[str, Any]], new: int) -> None:
    shown = [(row["score"], row["kd"], row["lrs"], row["task"]) for row in rows[:BEST]]
    title = f"best of {len(rows)} trials, {new} of them new"
    printing.table(("score", "kd (α)", "lrs (β)", "task (γ)"), shown, title=title)
