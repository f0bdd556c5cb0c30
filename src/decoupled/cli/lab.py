"""`sweep` and `layers`: what every split keeps and saves, and what the layers do with two texts."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoupled.cli import printing
from decoupled.cli.evaluate import check_task, labelled_pairs, open_model
from decoupled.cli.models import layer_numbers
from decoupled.cli.runs import changes_of, fitted_recipe, training_bar
from decoupled.errors import DecoupledError, InputError

if TYPE_CHECKING:
    from decoupled.index.documents import Pair
    from decoupled.lab.study.layers import LayerStudy
    from decoupled.lab.study.sweep import Sweep, Training
    from decoupled.model.model import Model
    from decoupled.train.data.examples import Examples
    from decoupled.train.data.tasks import Task


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(sweep)
    app.command()(layers)


Source = Annotated[
    str, typer.Argument(metavar="MODEL", help="Fine-tuned checkpoint, hub name or model folder.")
]
Data = Annotated[list[str], typer.Option(help="Judged pairs. May be repeated.")]
TaskName = Annotated[str, typer.Option(help="squad, race, boolq, mnli, mrpc, rank… or pairs.")]
OnError = Annotated[str, typer.Option(help="A broken line: `stop`, or `skip` it and say so.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def sweep(
    model: Source,
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="File of JSON lines to write.")],
    task: TaskName = "pairs",
    limit: Annotated[int, typer.Option(min=1, help="Judge with the first N queries.")] = 500,
    splits: Annotated[
        str | None, typer.Option(help="Splits to measure, as 0,3,4 or 1-5; all if not given.")
    ] = None,
    train: Annotated[
        list[str] | None,
        typer.Option(help="Pairs to distil every split on first; without, nothing is trained."),
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the training pairs.")] = None,
    batch: Annotated[int | None, typer.Option(help="Pairs in a step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A field of the recipe: weights.kd=0.5…")
    ] = None,
    codec: Annotated[str, typer.Option(help="Codec of the stored passages.")] = "int8",
    candidates: Annotated[int, typer.Option(min=1, help="Passages a query is timed on.")] = 20,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of timing; 0 times nothing.")] = 5,
    on_error: OnError = "stop",
    as_json: Json = False,
) -> None:
    """Score, agreement, FLOPs, latency and bytes of every split. Run it again: it goes on."""
    from decoupled.lab.study import sweep as study
    from decoupled.model.codec import parse_codec

    parse_codec(codec)
    if output.is_dir():
        raise InputError(f"{output} is a folder; name a file of JSON lines to write")
    whole, what, made = judged(model, data, task, limit, on_error)
    chosen = _splits(splits, len(whole.spec.layers))
    training = None
    if train:
        _say_shared(data, train)
        named = {"epochs": epochs, "batch": batch, "lr": lr}
        given = labelled_pairs(train, "stop")
        training = _training(whole, task, given, changes_of(settings, seed=0, **named), output)
    swept = study.Sweep(
        model=whole,
        task=what,
        examples=made,
        codec=codec,
        training=training,
        candidates=min(candidates, len(made.passages)),
        rounds=rounds,
    )
    lines = _run(replace(swept, about=_about(swept, model, data, limit, train)), chosen, output)
    if as_json:
        printing.document({"file": str(output), "splits": lines})
    else:
        _show_sweep(lines)
    printing.note(f"{output}: {len(lines)} splits; draw them with: decoupled report {output}")


def layers(
    model: Source,
    data: Data,
    task: TaskName = "pairs",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="JSON file of the curves to write.")
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(help="Another model against the joint one, as NAME=MODEL. May be repeated."),
    ] = None,
    passages: Annotated[int, typer.Option(min=1, help="Passages to read.")] = 100,
    queries: Annotated[int, typer.Option(min=2, help="Queries beside each passage.")] = 5,
    on_error: OnError = "stop",
    as_json: Json = False,
) -> None:
    """How each layer uses the other text, how far splits depart from it, and where to split."""
    from decoupled.lab.study.suggest import suggest

    named = [_named(text) for text in compare or ()]
    whole, what, made = judged(model, data, task, None, on_error)
    found = curves(whole, made, dict(named), passages, queries)
    suggestion = suggest(found.crossing_query, found.crossing_passage)
    facts = {
        "kind": "layers",
        "model": model,
        "task": what.name,
        "data": [Path(source).name for source in data],
        "command": command(),
        **found.to_json(),
        "suggestion": suggestion.to_json(),
    }
    if output is not None:
        output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if as_json:
        printing.document(facts)
    else:
        _show_layers(found, suggestion.remaining)
    printing.note(f"suggested split: {suggestion.split} of {found.layers} layers, to be distilled")


# Data and models ----------------------------------------------------------------------------------


def judged(
    model: str | Model, data: Sequence[str], task: str, limit: int | None, on_error: str
) -> tuple[Model, Task, Examples]:
    """The model, the task as its head reads it, and tokenised examples."""
    from decoupled.train.data.prepare import prepare

    check_task(task)
    pairs = labelled_pairs(data, on_error)
    opened = open_model(model) if isinstance(model, str) else model
    if not opened.spec.heads:
        raise InputError(
            "the model has no head, so there is nothing to judge; fine-tune it first: "
            "decoupled distill MODEL -o OUT --data DATA --recipe plain"
        )
    ready = prepare(pairs, opened, task, train=False, limit=limit)
    return opened, ready.task, ready.examples(opened)


def curves(
    model: Model, made: Examples, others: dict[str, str], passages: int, queries: int
) -> LayerStudy:
    """The curves over the layers, with a progress bar."""
    import numpy as np

    from decoupled.cli.index import progress_bar
    from decoupled.lab.study.layers import layers

    opened = {name: open_model(source) for name, source in others.items()}
    count = min(passages, len(np.unique(made.passage_of)))
    with progress_bar("layers", count * queries) as bar:
        return layers(
            model, made, others=opened, passages=passages, queries=queries, progress=bar.read
        )


def command() -> str:
    """The command line as it was typed."""
    return "decoupled " + shlex.join(sys.argv[1:])


def _named(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not equals or not name or not source:
        raise InputError(f"--compare is {text!r}; write NAME=MODEL, for example distilled=better")
    return name, source


def _splits(text: str | None, last: int) -> list[int]:
    if text is None:
        return list(range(last + 1))
    try:
        found = layer_numbers(text)
    except ValueError:
        raise InputError(f"--splits is {text!r}; write 0,3,4 or 1-5") from None
    # The joint model is what all others are compared with.
    return sorted({*found, 0})


def _say_shared(data: Sequence[str], train: Sequence[str]) -> None:
    trained = {Path(source).resolve() for source in train}
    for source in data:
        if Path(source).resolve() in trained:
            printing.note(
                f"{source} is trained on and judged by, so the scores will be too good; judge by other pairs"
            )


def _training(
    model: Model, task: str, pairs: list[Pair], changes: dict[str, Any], output: Path
) -> Training:
    from decoupled.lab.study.sweep import Training
    from decoupled.train.data.prepare import prepare

    recipe = fitted_recipe("deformer", changes, len(pairs))
    made = prepare(pairs, model, task).examples(model)
    return Training(examples=made, recipe=recipe, out=Path(f"{output}.run"))


def _about(
    swept: Sweep, name: str, data: Sequence[str], limit: int, train: Sequence[str] | None
) -> dict[str, Any]:
    """What makes a sweep the same one: a file with other values is not gone on with."""
    from decoupled.model.jsonable import to_json
    from decoupled.model.model import Model

    whole = Model.split(swept.model, at=len(swept.model.spec.layers))
    about: dict[str, Any] = {
        "kind": "sweep",
        "model": name,
        "fingerprint": whole.fingerprint[:16],
        "task": swept.task.name,
        "data": [Path(source).name for source in data],
        "limit": limit,
        "codec": swept.codec,
        "candidates": swept.candidates,
        "rounds": swept.rounds,
        "training": None,
        "command": command(),
    }
    if swept.training is not None:
        recipe = to_json(swept.training.recipe)
        told = {n: recipe[n] for n in ("name", "optimiser", "weights", "temperature", "seed")}
        about["training"] = {"data": [Path(source).name for source in train or ()], **told}
    return about


# Showing ------------------------------------------------------------------------------------------


def _run(swept: Sweep, splits: list[int], output: Path) -> list[dict[str, Any]]:
    from decoupled.lab.study.sweep import read_lines
    from decoupled.lab.study.sweep import sweep as study

    def on_split(line: dict[str, Any], fresh: bool) -> None:
        word = "" if fresh else ", measured before"
        printing.note(f"split {line['split']}: {line['metric']} {line['score']:.2f}{word}")

    try:
        with training_bar() as bar:
            return study(swept, splits, output, on_split=on_split, progress=bar.told)
    except KeyboardInterrupt:
        done = len(read_lines(output))
        raise DecoupledError(
            f"stopped with {done} of {len(splits)} splits in {output}; run the same command to go on"
        ) from None


def _show_sweep(lines: Sequence[dict[str, Any]]) -> None:
    metric = lines[0]["metric"]
    columns = ("split", metric, "agreement", "FLOPs", "joint ms", "split ms", "bytes a passage")
    rows = []
    for line in lines:
        clock = {n: v["median"] for n, v in line.get("latency_ms", {}).items()}
        rows.append(
            (
                line["split"],
                f"{line['score']:.2f}",
                f"{line['agreement']:.3f}",
                f"÷ {line['flops']['speedup']:.2f}",
                f"{clock['joint']:.1f}" if clock else "",
                f"{clock['split']:.1f}" if "split" in clock else "",
                f"{line['bytes']['passage']:,}",
            )
        )
    timed = [line["candidates"] for line in lines if "latency_ms" in line]
    title = f"milliseconds of a query and {timed[0]} passages together" if timed else ""
    printing.table(columns, rows, title=title)


def _show_layers(found: LayerStudy, remaining: Sequence[float]) -> None:
    columns = ("layer", "variance", "query → passage", "passage → query", "left above")
    rows = []
    for layer in range(found.layers + 1):
        at = layer - 1
        crossing = (found.crossing_query, found.crossing_passage)
        shares = [f"{c[at]:.3f}" if layer else "" for c in crossing]
        rows.append((layer, found.variance[layer], *shares, f"{remaining[layer]:.0%}"))
    printing.table(columns, rows)
