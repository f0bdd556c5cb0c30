"""`shrink`: make a model smaller, and train it to stay as good."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.cli.train import begin, watched
from decoupled.errors import InputError, need

if TYPE_CHECKING:
    from decoupled.train.shrink.base import Method


def list_methods(wanted: bool) -> None:
    """Print the methods of `shrink` with their options, and stop."""
    if not wanted:
        return
    need(("torch", "torch"), ("accelerate", "train"))
    from decoupled.train.shrink.names import described

    printing.table(("method", "what it does", "options, defaults first"), described())
    raise typer.Exit()


def shrink(
    model: opt.Source,
    output: opt.NewModel,
    method: Annotated[
        list[str],
        Option(
            "--method", "-m", help="NAME:key=value,key=value. Repeat it: they apply in that order."
        ),
    ],
    data: Annotated[
        list[str] | None, Option(help="Labelled pairs that methods look at and training uses.")
    ] = None,
    task: opt.TaskName = "pairs",
    check: Annotated[
        list[str] | None, Option(help="Labelled pairs to score the model on, before and after.")
    ] = None,
    recipe: Annotated[
        str | None,
        Option(help="Train afterwards: plain (labels), deformer or decoupled (also the model)."),
    ] = None,
    epochs: opt.Epochs = None,
    batch: opt.Batch = None,
    lr: opt.Rate = None,
    seed: opt.Seed = 0,
    evaluations: Annotated[
        int, Option(min=0, help="Times that a tenth of the data judges the weights.")
    ] = 4,
    settings: opt.Sets = None,
    compact: Annotated[
        bool,
        Option(
            "--compact",
            help="Save what stays in floating point with half the bits, the token table with a quarter.",
        ),
    ] = False,
    on_error: opt.OnError = "stop",
    as_json: opt.Json = False,
    listing: Annotated[
        bool,
        Option(
            "--list",
            help="Show the methods and their options.",
            is_eager=True,
            callback=list_methods,
        ),
    ] = False,
) -> None:
    """Make a model smaller: prune, share, factorise, quantise, replace. `--list` names the methods."""
    from decoupled.model.folder import check_free

    opt.need_torch(("accelerate", "train"))
    from decoupled.train.data.tasks import check_task
    from decoupled.train.shrink.names import parse

    check_task(task)
    check_free(output)
    if recipe is None:
        _refuse_idle({"--epochs": epochs, "--batch": batch, "--lr": lr, "--set": settings})
    methods = [parse(text) for text in method]
    pairs = opt.read_data(data, on_error) if data else None
    if recipe is not None and pairs is None:
        raise InputError(
            f"--recipe {recipe} trains, and training needs labelled pairs; give --data"
        )
    judged = opt.read_data(check, on_error) if check else None
    from decoupled.train.shrink.count import TOKENS, compare_sizes, file_bytes

    whole, held = dc.Model.open(model), file_bytes(Path(model))
    options: dict[str, Any] = {"data": pairs, "task": task, "out": output, "compact": compact}
    if recipe is None or pairs is None:
        with printing.training_bar() as bar:
            made = dc.shrink(whole, methods, progress=bar.told, **options)
        _say_untrained(methods)
    else:
        changes = opt.recipe_changes(settings, epochs=epochs, batch=batch, lr=lr, seed=seed)
        changes = {"watch.evaluations": evaluations, **changes}
        chosen = dc.recipe(recipe, changes, pairs=len(pairs))
        told = {"model": model, "data": data, "task": task, "recipe": recipe, "methods": method}
        begin(output, told, chosen, len(pairs))
        with watched(output) as bar:
            made = dc.shrink(whole, methods, recipe=chosen, progress=bar.told, **options)
    if judged is not None:
        printing.note(f"scoring {len(judged)} pairs with both models")
    sizes = compare_sizes(
        whole, made, (held, file_bytes(output)), methods=methods, judged=judged, task=task
    )
    facts = {"model": str(output), **sizes, "tokens": TOKENS}
    printing.result(facts, as_json, _show_sizes)


def _refuse_idle(options: dict[str, Any]) -> None:
    """Options of training do nothing where nothing is trained."""
    if idle := [name for name, value in options.items() if value]:
        raise InputError(
            f"{', '.join(idle)} is for training, and without --recipe nothing is trained; add --recipe "
            "plain, deformer or decoupled, or leave it out"
        )


def _say_untrained(methods: list[Method]) -> None:
    """Methods whose work is training did nothing, or left a model that needs it."""
    if acting := [method.name for method in methods if method.by_training]:
        printing.note(
            f"{', '.join(acting)}: the work of this happens while training; add --recipe plain --data D"
        )


def _show_sizes(facts: dict[str, Any]) -> None:
    before, after = facts["before"], facts["after"]
    rows = []
    for name in before:
        ratio = f"{after[name] / before[name]:.2f}" if before[name] else ""
        rows.append((name.replace("_", " "), _number(before[name]), _number(after[name]), ratio))
    query, passage = facts["tokens"]
    title = f"one query of {query} and one passage of {passage} tokens"
    printing.table(("", "before", "after", "ratio"), rows, title=title)
    size = f"{after['parameters']:,} parameters in {after['file_bytes']:,} bytes"
    printing.note(f"{facts['model']}: {size}")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
