"""`shrink`: make a model smaller, and train it to stay as good."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.cli.train import begin, stopped
from decoupled.errors import DecoupledError, InputError, need

if TYPE_CHECKING:
    from decoupled.index.documents import Pair
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
        typer.Option(
            "--method", "-m", help="NAME:key=value,key=value. Repeat it: they apply in that order."
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(help="Labelled pairs that methods look at and training uses."),
    ] = None,
    task: opt.TaskName = "pairs",
    check: Annotated[
        list[str] | None,
        typer.Option(help="Labelled pairs to score the model on, before and after."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Train afterwards: plain (labels), deformer or decoupled (also the model)."
        ),
    ] = None,
    epochs: opt.Epochs = None,
    batch: opt.Batch = None,
    lr: opt.Rate = None,
    seed: opt.Seed = 0,
    evaluations: Annotated[
        int, typer.Option(min=0, help="Times that a tenth of the data judges the weights.")
    ] = 4,
    settings: opt.Sets = None,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact",
            help="Save what stays in floating point with half the bits, the token table with a quarter.",
        ),
    ] = False,
    on_error: opt.OnError = "stop",
    as_json: opt.Json = False,
    listing: Annotated[
        bool,
        typer.Option(
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
    from decoupled.train.shrink.count import file_bytes

    whole, held = dc.Model.open(model), file_bytes(Path(model))
    options: dict[str, Any] = {"data": pairs, "task": task, "out": output, "compact": compact}
    work = Path(f"{output}.run")
    if recipe is not None:
        changes = opt.recipe_changes(settings, epochs=epochs, batch=batch, lr=lr, seed=seed)
        changes = {"watch.evaluations": evaluations, **changes}
        options["recipe"] = dc.recipe(recipe, changes, pairs=len(pairs or ()))
        told = {"model": model, "data": data, "task": task, "recipe": recipe, "methods": method}
        begin(output, told, options["recipe"], pairs or [])
    with printing.training_bar() as bar:
        try:
            made = dc.shrink(whole, methods, progress=bar.told, **options)
        except KeyboardInterrupt:
            if recipe is None:
                raise
            raise DecoupledError(stopped(work, bar)) from None
    if recipe is None:
        _say_untrained(methods)
    _report_shrunk(whole, made, output, judged, task, as_json, methods=methods, held=held)


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


def _report_shrunk(
    whole: dc.Model,
    made: dc.Model,
    output: Path,
    judged: list[Pair] | None,
    task: str,
    as_json: bool,
    *,
    methods: list[Method],
    held: int | None,
) -> None:
    from decoupled.train.data.prepare import prepare
    from decoupled.train.shrink.count import TOKENS, file_bytes, size_facts
    from decoupled.train.shrink.measure import score_of

    sparse = any(one.name == "prune-weights" for one in methods)
    before = size_facts(whole, held, sparse=sparse)
    after = size_facts(made, file_bytes(output), sparse=sparse)
    if judged is not None:
        printing.note(f"scoring {len(judged)} pairs with both models")
        for facts, model in ((before, whole), (after, made)):
            ready = prepare(judged, model, task, train=False)
            facts["score"] = round(score_of(model, ready), 4)
    if as_json:
        printing.document(
            {"model": str(output), "before": before, "after": after, "tokens": TOKENS}
        )
        return
    rows = []
    for name in before:
        ratio = f"{after[name] / before[name]:.2f}" if before[name] else ""
        rows.append((name.replace("_", " "), _number(before[name]), _number(after[name]), ratio))
    query, passage = TOKENS
    title = f"one query of {query} and one passage of {passage} tokens"
    printing.table(("", "before", "after", "ratio"), rows, title=title)
    printing.note(f"{output}: {after['parameters']:,} parameters in {after['file_bytes']:,} bytes")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
