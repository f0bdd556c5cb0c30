"""`distill`, `tune` and `shrink`: better weights for a split, for the losses, and for a smaller model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.errors import InputError, need
from decoupled.train.settings import PairTraining, recipe_changes

if TYPE_CHECKING:
    from decoupled.train.recipe import Recipe
    from decoupled.train.reshape import OpenedTraining

Source = Annotated[
    str, Argument(metavar="MODEL", help="Model folder, checkpoint folder or hub name.")
]
Data = Annotated[
    list[str], Option(help="Pairs: jsonl, csv, tsv, SQuAD, RACE, BEIR folder. May be repeated.")
]
Task = Annotated[str, Option(help="squad, squad2, race, boolq, mnli, qqp, mrpc, rank… or pairs.")]
Teacher = Annotated[
    str | None, Option(help="Model to imitate; the same weights unsplit if not given.")
]
At = Annotated[int | None, Option(help="Split at this layer first, where MODEL is a checkpoint.")]
Projection = Annotated[int | None, Option(help="Learn a projection of the states to this width.")]
Epochs = Annotated[float | None, Option(help="Passes over the data.")]
Batch = Annotated[int | None, opt.rare(help="Pairs (or questions with options) in a step.")]
Rate = Annotated[float | None, opt.rare(help="Highest learning rate.")]
Seed = Annotated[int, opt.rare(help="Of the order of the data, dropout and new heads.")]
Sets = Annotated[
    list[str] | None,
    Option("--set", help="A field of the recipe: weights.kd=0.5, optimiser.warmup=0.1…"),
]


def distill(
    model: Source,
    output: opt.NewModel,
    data: Data,
    task: Task = "pairs",
    teacher: Teacher = None,
    spec: opt.Spec = None,
    recipe: Annotated[
        str,
        Option(help="distill, those of the papers (deformer, decoupled), or plain: labels alone."),
    ] = "distill",
    epochs: Epochs = None,
    batch: Batch = None,
    lr: Rate = None,
    projection: Projection = None,
    at: At = None,
    one_way: Annotated[
        str | None, opt.rare(help="Layers where only the query advances: auto, or 4-6, or 4,5.")
    ] = None,
    seed: Seed = 0,
    evaluations: Annotated[
        int, opt.rare(min=0, help="Times that a tenth of the data judges; 0 trains on all of it.")
    ] = 4,
    minutes: Annotated[float | None, Option(help="End by the clock, if not before.")] = None,
    settings: Sets = None,
    on_error: opt.OnError = "stop",
    as_json: opt.Json = False,
) -> None:
    """Train a split model to say what its teacher says. Run it again after Ctrl-C: it goes on."""
    changes = {"watch.evaluations": evaluations}
    changes |= recipe_changes(
        settings, epochs=epochs, batch=batch, lr=lr, minutes=minutes, seed=seed
    )
    how: dict[str, Any] = {"teacher": teacher, "at": at, "projection": projection}
    how |= {"one_way": one_way, "spec": str(spec) if spec else None}
    options = PairTraining(model=model, data=tuple(data), task=task, recipe=recipe, **how)
    ready = _opened(options, changes, on_error)
    from decoupled.train.data.tasks import task_for
    from decoupled.train.loop.checkpoint import ended

    with watched(output, options, ready.recipe, f"{len(ready.pairs)} pairs") as bar:
        run = partial(dc.distill, ready.student, data=ready.pairs, task=task, recipe=ready.recipe)
        run(teacher=ready.teacher, out=output, progress=bar.log)
    done, best = ended(output)
    metric = task_for(task, ready.pairs, ready.student.spec.heads).metric
    facts = {"model": str(output), "task": task, "recipe": recipe, "pairs": len(ready.pairs)}
    printing.result({**facts, **done, "metric": metric, "tune": best}, as_json)
    score = "" if best is None else f"; {metric} {best:.2f} on the tune split"
    printing.note(f"{output}: trained {done['steps']} steps in {done['seconds']:.0f} s{score}")


def tune(
    model: Source,
    output: Annotated[Path, Option("--output", "-o", help="JSON file of the trials.")],
    data: Data,
    task: Task = "pairs",
    trials: Annotated[int, Option(min=1, help="Trials in all, earlier ones included.")] = 50,
    teacher: Teacher = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: Rate = None,
    projection: Projection = None,
    at: At = None,
    seed: Seed = 0,
    settings: Sets = None,
    on_error: opt.OnError = "stop",
    as_json: opt.Json = False,
) -> None:
    """Search loss weights, temperature and rate; a tenth of the data judges. Run it again: it goes on."""
    need(("optuna", "train"))
    changes = recipe_changes(settings, epochs=epochs, batch=batch, lr=lr, seed=seed)
    changes |= {"watch.evaluations": 1, "watch.save_every": 0}
    if output.is_dir():
        raise InputError(f"{output} is a folder; name a JSON file to write")
    how: dict[str, Any] = {"teacher": teacher, "at": at, "projection": projection}
    options = PairTraining(model=model, data=tuple(data), task=task, recipe="distill", **how)
    ready = _opened(options, changes, on_error)
    from decoupled.lab import tune as search
    from decoupled.train.loop.checkpoint import same_run, work_folder

    journal = work_folder(output) / "journal.jsonl"  # a stop loses only the trial that runs
    if same_run(journal.parent, options, ready.recipe, unfinished=journal.name):
        printing.note(f"going on with the run in {journal.parent}")
    done = len(search.read_journal(journal))

    def stopped() -> str:
        tried = len(search.read_journal(journal))
        return f"stopped after {tried} of {trials} trials; run the same command to go on"

    with printing.training_bar() as bar, printing.stoppable(stopped):
        run = partial(dc.tune, ready.student, data=ready.pairs, task=task, recipe=ready.recipe)
        run = partial(run, teacher=ready.teacher, trials=trials, journal=journal)
        ranked = run(progress=lambda trial, line: bar.log(line, f"trial {trial} of {trials}, "))
    rows = [trial.to_json() for trial in ranked]
    result = {"model": model, "task": task, "best": rows[0], "trials": rows}
    printing.write(result, output)
    printing.result(result, as_json, lambda _: search.trial_table(ranked, done))
    best = " ".join(f"--set {field}={rows[0][name]}" for name, field in search.FIELDS.items())
    printing.note(f"train with the best: decoupled distill {model} … {best}")


def _list(requested: bool) -> None:
    """Print the methods of `shrink` with their options, and stop."""
    if not requested:
        return
    need(("torch", "torch"), ("accelerate", "train"))
    from decoupled.methods.names import described

    printing.table(("method", "what it does", "options, defaults first"), described())
    raise typer.Exit()


def shrink(
    model: Source,
    output: opt.NewModel,
    method: Annotated[
        list[str],
        Option("--method", "-m", help="NAME:key=value,key=value. Repeat it: applied in order."),
    ],
    data: Annotated[
        list[str] | None, Option(help="Labelled pairs that methods look at and training uses.")
    ] = None,
    task: Task = "pairs",
    check: Annotated[
        list[str] | None, Option(help="Labelled pairs to score the model on, before and after.")
    ] = None,
    recipe: Annotated[
        str | None, Option(help="Train afterwards: plain, distill, deformer or decoupled.")
    ] = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: Rate = None,
    seed: Seed = 0,
    evaluations: Annotated[
        int, Option(min=0, help="Times that a tenth of the data judges the weights.")
    ] = 4,
    settings: Sets = None,
    compact: Annotated[
        bool, Option("--compact", help="Save what stays floats with a quarter of the bits.")
    ] = False,
    on_error: opt.OnError = "stop",
    as_json: opt.Json = False,
    listing: Annotated[
        bool,
        Option("--list", is_eager=True, callback=_list, help="Show the methods and their options."),
    ] = False,
) -> None:
    """Make a model smaller: prune, share, factorise, quantise, replace. `--list` names the methods."""
    from decoupled.train.run import recipe as make_recipe

    opt.need_torch(("accelerate", "train"))
    from decoupled.methods.count import TOKENS, compare_sizes, file_bytes, size_table
    from decoupled.methods.names import parse
    from decoupled.train.data.tasks import check_task

    check_task(task)
    idle = {"--epochs": epochs, "--batch": batch, "--lr": lr, "--set": settings}
    if recipe is None and (named := [name for name, value in idle.items() if value]):
        raise InputError(
            f"{', '.join(named)} is for training, and without --recipe nothing is trained; add --recipe "
            "plain or distill, or leave it out"
        )
    methods = [parse(text) for text in method]
    pairs = opt.read_data(data, on_error) if data else None
    if recipe is not None and pairs is None:
        raise InputError(
            f"--recipe {recipe} trains, and training needs labelled pairs; give --data"
        )
    check_pairs = opt.read_data(check, on_error) if check else None
    whole, held = dc.Model.open(model), file_bytes(Path(model))
    training: AbstractContextManager[printing.TrainingBar] = printing.training_bar()
    chosen = None  # without a recipe nothing is trained
    if recipe is not None and pairs is not None:
        changes = {"watch.evaluations": evaluations}
        changes |= recipe_changes(settings, epochs=epochs, batch=batch, lr=lr, seed=seed)
        chosen = make_recipe(recipe, changes, pairs=len(pairs))
        options = PairTraining(
            model=model, data=tuple(data or ()), task=task, recipe=recipe, methods=tuple(method)
        )
        training = watched(output, options, chosen, f"{len(pairs)} pairs")
    with training as bar:
        run = partial(dc.shrink, whole, methods, data=pairs, task=task, recipe=chosen)
        smaller = run(out=output, compact=compact, progress=bar.log)
    if acting := [method.name for method in methods if method.by_training and not recipe]:
        printing.note(
            f"{', '.join(acting)}: the work of this happens while training; add --recipe plain --data D"
        )
    if check_pairs is not None:
        printing.note(f"scoring {len(check_pairs)} pairs with both models")
    bytes_held = (held, file_bytes(output))
    sizes = compare_sizes(
        whole, smaller, bytes_held, methods=methods, check_pairs=check_pairs, task=task
    )
    facts = {"model": str(output), **sizes, "tokens": TOKENS}
    printing.result(facts, as_json, size_table)


@contextmanager
def watched(
    output: Path, options: object, recipe: Recipe, what: str
) -> Iterator[printing.TrainingBar]:
    """A bar for a run that begins or goes on; after Ctrl-C it is said from where it would go on."""
    from decoupled.train.loop.checkpoint import same_run, stopped_at, work_folder

    work = work_folder(output)
    if same_run(work, options, recipe):
        printing.note(f"going on with the run in {work}")
    printing.note(f"{what}; the log is {work / 'log.jsonl'}")

    def stopped() -> str:
        if at := stopped_at(work):
            return f"stopped {bar.place}; run the same command to go on from {at}"
        return f"stopped {bar.place}, without a checkpoint; run the same command to begin again"

    with printing.training_bar() as bar, printing.stoppable(stopped):
        yield bar


def _opened(options: PairTraining, changes: Mapping[str, Any], on_error: str) -> OpenedTraining:
    """All that a run needs; what is wrong is said before a model is loaded."""
    options.check(changes)
    pairs = opt.read_data(options.data, on_error)
    opt.need_torch(("accelerate", "train"))
    from decoupled.train.reshape import open_training

    return open_training(options, changes, pairs)
