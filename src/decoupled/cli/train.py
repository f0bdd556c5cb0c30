"""`distill` and `tune`: win back what a split loses, and find the weights of the losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoupled.cli import printing
from decoupled.cli.evaluate import need
from decoupled.cli.runs import (
    Job,
    TrainingBar,
    changes_of,
    check_output,
    fitted_recipe,
    models_of,
    pairs_of,
    same_run,
    stopped,
    training_bar,
)
from decoupled.errors import DecoupledError, InputError

if TYPE_CHECKING:
    from decoupled.index.documents import Pair
    from decoupled.model.model import Model
    from decoupled.train.recipe import Recipe

BEST = 10
"""Trials that are shown."""


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(distill)
    app.command()(tune)


Source = Annotated[
    str, typer.Argument(metavar="MODEL", help="Model folder, checkpoint folder or hub name.")
]
Data = Annotated[
    list[str],
    typer.Option(help="Pairs: jsonl, csv, tsv, SQuAD, RACE, BEIR folder. May be repeated."),
]
TaskName = Annotated[
    str, typer.Option(help="squad, squad2, race, boolq, mnli, qqp, mrpc, rank… or pairs.")
]
Teacher = Annotated[
    str | None, typer.Option(help="Model to imitate; the same weights unsplit if not given.")
]
At = Annotated[
    int | None, typer.Option(help="Split at this layer first, where MODEL is a checkpoint.")
]
Projection = Annotated[
    int | None, typer.Option(help="Learn a projection of the states to this width.")
]
OneWayLayers = Annotated[
    str | None,
    typer.Option("--one-way", help="Layers where only the query advances: auto, or 4-6, or 4,5."),
]
Epochs = Annotated[float | None, typer.Option(help="Passes over the data.")]
Batch = Annotated[int | None, typer.Option(help="Pairs (or questions with options) in a step.")]
Rate = Annotated[float | None, typer.Option(help="Highest learning rate.")]
Seed = Annotated[int, typer.Option(help="Of the order of the data, dropout and new heads.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="A field of the recipe: weights.kd=0.5, optimiser.warmup=0.1…"),
]
OnError = Annotated[str, typer.Option(help="A broken line: `stop`, or `skip` it and say so.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def distill(
    model: Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="Model folder to write.")],
    data: Data,
    task: TaskName = "pairs",
    teacher: Teacher = None,
    recipe: Annotated[
        str, typer.Option(help="deformer, decoupled, or plain for the labels alone.")
    ] = "deformer",
    epochs: Epochs = None,
    batch: Batch = None,
    lr: Rate = None,
    projection: Projection = None,
    at: At = None,
    one_way: OneWayLayers = None,
    seed: Seed = 0,
    evaluations: Annotated[
        int,
        typer.Option(
            min=0, help="Times that a tenth of the data judges the weights; 0 trains on all of it."
        ),
    ] = 4,
    settings: Sets = None,
    on_error: OnError = "stop",
    as_json: Json = False,
) -> None:
    """Train a split model to say what its teacher says. Run it again after Ctrl-C: it goes on."""
    job = Job(
        model=model,
        data=tuple(data),
        task=task,
        teacher=teacher,
        at=at,
        projection=projection,
        recipe=recipe,
        one_way=one_way,
    )
    changes = changes_of(settings, epochs=epochs, batch=batch, lr=lr, seed=seed)
    changes = {"watch.evaluations": evaluations, **changes}
    check_output(output)
    pairs = pairs_of(job, changes, on_error)
    student, guide = models_of(job)
    chosen = fitted_recipe(job.recipe, changes, len(pairs))
    work = Path(f"{output}.run")
    same_run(work, job, chosen, "checkpoint*/checkpoint.json")
    printing.note(f"{len(pairs)} pairs; the log is {work / 'log.jsonl'}")
    with training_bar() as bar:
        try:
            _train(student, guide, pairs, job, chosen, output, bar)
        except KeyboardInterrupt:
            raise DecoupledError(stopped(work, bar)) from None
    _report(output, work, student, pairs, job, as_json)


def tune(
    model: Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON file of the trials.")],
    data: Data,
    task: TaskName = "pairs",
    trials: Annotated[int, typer.Option(min=1, help="Trials in all, earlier ones included.")] = 50,
    plot: Annotated[Path | None, typer.Option(help="Picture of the trials to write.")] = None,
    teacher: Teacher = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: Rate = None,
    projection: Projection = None,
    at: At = None,
    seed: Seed = 0,
    settings: Sets = None,
    on_error: OnError = "stop",
    as_json: Json = False,
) -> None:
    """Search the weights of the losses; a tenth of the data judges. Run it again: it goes on."""
    job = Job(
        model=model,
        data=tuple(data),
        task=task,
        teacher=teacher,
        at=at,
        projection=projection,
        recipe="deformer",
    )
    need(("optuna", "train"), *((("matplotlib", "plots"),) if plot else ()))
    changes = changes_of(settings, epochs=epochs, batch=batch, lr=lr, seed=seed)
    changes |= {"watch.evaluations": 1, "watch.save_every": 0}
    if output.is_dir():
        raise InputError(f"{output} is a folder; name a JSON file to write")
    pairs = pairs_of(job, changes, on_error)
    student, guide = models_of(job)
    base = fitted_recipe(job.recipe, changes, len(pairs))
    work = Path(f"{output}.run")
    same_run(work, job, base, "journal.jsonl")
    _search(output, job, student, guide, pairs, base, trials, plot, as_json)


# Training -----------------------------------------------------------------------------------------


def _train(
    student: Model,
    teacher: Model | None,
    pairs: list[Pair],
    job: Job,
    recipe: Recipe,
    output: Path,
    bar: TrainingBar,
) -> None:
    from decoupled.train.run import distill, finetune

    if job.recipe == "plain" and teacher is None:
        finetune(student, data=pairs, task=job.task, recipe=recipe, out=output, progress=bar.told)
        return
    distill(
        student,
        data=pairs,
        task=job.task,
        teacher=teacher,
        recipe=recipe,
        out=output,
        progress=bar.told,
    )


def _report(
    output: Path, work: Path, student: Model, pairs: list[Pair], job: Job, as_json: bool
) -> None:
    """What was made, and its score on the tune split; the log also knows what was before a Ctrl-C."""
    from decoupled.lab.study.sweep import read_lines

    lines = read_lines(work / "log.jsonl")
    scores = [line["tune"] for line in lines if "tune" in line]
    facts: dict[str, Any] = {
        "model": str(output),
        "task": job.task,
        "recipe": job.recipe,
        "pairs": len(pairs),
        "steps": lines[-1]["step"],
        "seconds": lines[-1]["seconds"],
        "metric": _metric(student, pairs, job.task),
        "tune": round(max(scores), 4) if scores else None,
        "log": str(work / "log.jsonl"),
    }
    if as_json:
        printing.document(facts)
    score = f"; {facts['metric']} {facts['tune']:.2f} on the tune split" if scores else ""
    printing.note(f"{output}: trained {facts['steps']} steps in {facts['seconds']:.0f} s{score}")


def _metric(student: Model, pairs: list[Pair], task: str) -> str:
    from decoupled.train.data.tasks import task_for

    return task_for(task, pairs, student.spec.heads).metric


# Search -------------------------------------------------------------------------------------------


def _search(
    output: Path,
    job: Job,
    student: Model,
    teacher: Model | None,
    pairs: list[Pair],
    base: Recipe,
    trials: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    from decoupled.train import tune as search

    journal = Path(f"{output}.run") / "journal.jsonl"
    done = len(search.read_journal(journal))
    with training_bar() as bar:
        trial = 0

        def progress(number: int, line: dict[str, Any]) -> None:
            nonlocal trial
            if number != trial:
                trial = number
                bar.begin(f"trial {number} of {trials}, ")
            bar.told(line)

        try:
            found = search.tune(
                student,
                data=pairs,
                task=job.task,
                teacher=teacher,
                recipe=base,
                trials=trials,
                journal=journal,
                progress=progress,
            )
        except KeyboardInterrupt:
            raise DecoupledError(
                f"stopped after {len(search.read_journal(journal))} of {trials} trials; run the same "
                "command to go on"
            ) from None
    rows = [
        {**dict(zip(search.NAMES, trial.weights, strict=True)), "score": round(trial.score, 4)}
        for trial in found
    ]
    result = {"model": job.model, "task": job.task, "best": rows[0], "trials": rows}
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if plot is not None:
        search.plot(found, plot)
    if as_json:
        printing.document(result)
    else:
        names = ("score", "kd (α)", "lrs (β)", "task (γ)")
        table = [(row["score"], row["kd"], row["lrs"], row["task"]) for row in rows[:BEST]]
        printing.table(
            names, table, title=f"best of {len(rows)} trials, {len(rows) - done} of them new"
        )
    best = " ".join(f"--set weights.{name}={rows[0][name]}" for name in search.NAMES)
    printing.note(f"train with the best: decoupled distill {job.model} … {best}")
