"""`distill` and `tune`: win back what a split loses, and find the weights of the losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
        str, typer.Option(help="deformer, decoupled, or plain for the labels alone.")
    ] = "deformer",
    epochs: opt.Epochs = None,
    batch: opt.Batch = None,
    lr: opt.Rate = None,
    projection: opt.Projection = None,
    at: opt.At = None,
    one_way: Annotated[
        str | None,
        typer.Option(
            "--one-way", help="Layers where only the query advances: auto, or 4-6, or 4,5."
        ),
    ] = None,
    seed: opt.Seed = 0,
    evaluations: Annotated[
        int,
        typer.Option(
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
    student, guide, chosen = _start(told, changes, len(pairs))
    from decoupled.train.run import finetune

    work = begin(output, told, chosen, pairs)
    options: dict[str, Any] = {"data": pairs, "task": task, "recipe": chosen, "out": output}
    with printing.training_bar() as bar:
        try:
            if recipe == "plain" and guide is None:
                finetune(student, progress=bar.told, **options)
            else:
                dc.distill(student, teacher=guide, progress=bar.told, **options)
        except KeyboardInterrupt:
            raise DecoupledError(stopped(work, bar)) from None
    _report_training(output, work, student, pairs, told, as_json)


def tune(
    model: opt.Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON file of the trials.")],
    data: opt.TrainingData,
    task: opt.TaskName = "pairs",
    trials: Annotated[int, typer.Option(min=1, help="Trials in all, earlier ones included.")] = 50,
    plot: Annotated[Path | None, typer.Option(help="Picture of the trials to write.")] = None,
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
    student, guide, base = _start(told, changes, len(pairs))
    from decoupled.train import tune as search
    from decoupled.train.start import same_run

    work = Path(f"{output}.run")
    if same_run(work, told, base, "journal.jsonl"):
        printing.note(f"going on with the run in {work}")
    journal = work / "journal.jsonl"
    done = len(search.read_journal(journal))
    with printing.training_bar() as bar:
        try:
            ranked = dc.tune(
                student,
                data=pairs,
                task=task,
                teacher=guide,
                recipe=base,
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
    _report_trials(output, model, task, rows, len(rows) - done, as_json)


# Before training ----------------------------------------------------------------------------------


def _pairs(told: dict[str, Any], changes: dict[str, Any], on_error: str) -> list[Pair]:
    """Everything that can be wrong before a model is loaded; the pairs."""
    from decoupled.train.data.tasks import check_task
    from decoupled.train.recipe import change_recipe

    check_task(told["task"])
    opt.one_way_layers(told.get("one_way"))
    change_recipe(told["recipe"], changes)
    if told["teacher"] == told["model"] and told["at"] is None:
        raise InputError(
            f"--teacher is the model itself ({told['model']}); name another, or leave it out"
        )
    pairs = opt.read_data(told["data"], on_error)
    opt.need_torch(("accelerate", "train"))
    return pairs


def _start(
    told: dict[str, Any], changes: dict[str, Any], pairs: int
) -> tuple[dc.Model, dc.Model | None, Recipe]:
    from decoupled.train.start import student_and_teacher

    student, teacher = student_and_teacher(
        told["model"],
        at=told["at"],
        one_way=opt.one_way_layers(told.get("one_way")),
        projection=told["projection"],
        teacher=told["teacher"],
        plain=told["recipe"] == "plain",
    )
    return student, teacher, dc.recipe(told["recipe"], changes, pairs=pairs)


def begin(output: Path, told: dict[str, Any], recipe: Recipe, pairs: list[Pair]) -> Path:
    """The folder of the run, which is a new one or goes on."""
    from decoupled.train.start import same_run

    work = Path(f"{output}.run")
    if same_run(work, told, recipe, "checkpoint*/checkpoint.json"):
        printing.note(f"going on with the run in {work}")
    printing.note(f"{len(pairs)} pairs; the log is {work / 'log.jsonl'}")
    return work


# After it -----------------------------------------------------------------------------------------


def stopped(work: Path, bar: printing.TrainingBar) -> str:
    """What to say after Ctrl-C: where the run was, and from where it goes on."""
    try:
        state = json.loads((work / "checkpoint" / "checkpoint.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"stopped {bar.place}, without a checkpoint; run the same command to begin again"
    phase = "" if state["phase"] == "train" else f" of the phase {state['phase']}"
    return (
        f"stopped {bar.place}; run the same command to go on from step {state['step']}{phase}, "
        f"whose checkpoint is in {work}"
    )


def _report_training(
    output: Path,
    work: Path,
    student: dc.Model,
    pairs: list[Pair],
    told: dict[str, Any],
    as_json: bool,
) -> None:
    """What was made, and its score on the tune split; the log also knows what was before a Ctrl-C."""
    from decoupled.lab.study.sweep import read_lines
    from decoupled.train.data.tasks import task_for

    lines = read_lines(work / "log.jsonl")
    scores = [line["tune"] for line in lines if "tune" in line]
    facts: dict[str, Any] = {
        "model": str(output),
        "task": told["task"],
        "recipe": told["recipe"],
        "pairs": len(pairs),
        "steps": lines[-1]["step"],
        "seconds": lines[-1]["seconds"],
        "metric": task_for(told["task"], pairs, student.spec.heads).metric,
        "tune": round(max(scores), 4) if scores else None,
        "log": str(work / "log.jsonl"),
    }
    if as_json:
        printing.document(facts)
    score = f"; {facts['metric']} {facts['tune']:.2f} on the tune split" if scores else ""
    printing.note(f"{output}: trained {facts['steps']} steps in {facts['seconds']:.0f} s{score}")


def _report_trials(
    output: Path, model: str, task: str, rows: list[dict[str, Any]], new: int, as_json: bool
) -> None:
    result = {"model": model, "task": task, "best": rows[0], "trials": rows}
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if as_json:
        printing.document(result)
    else:
        shown = [(row["score"], row["kd"], row["lrs"], row["task"]) for row in rows[:BEST]]
        title = f"best of {len(rows)} trials, {new} of them new"
        printing.table(("score", "kd (α)", "lrs (β)", "task (γ)"), shown, title=title)
    best = " ".join(f"--set weights.{name}={rows[0][name]}" for name in ("kd", "lrs", "task"))
    printing.note(f"train with the best: decoupled distill {model} … {best}")
