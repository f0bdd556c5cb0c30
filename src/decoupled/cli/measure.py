"""`sweep`, `layers`, `bench` and `report`: what was swept, looked into and raced, as one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.errors import DecoupledError, InputError, need
from decoupled.train.settings import recipe_changes

if TYPE_CHECKING:
    from decoupled.index.documents import Pair

Checkpoint = Annotated[
    str, Argument(metavar="MODEL", help="Fine-tuned checkpoint, hub name or model folder.")
]
JudgedData = Annotated[list[str], Option(help="Judged pairs. May be repeated.")]
JudgedTask = Annotated[str, Option(help="squad, race, boolq, mnli, mrpc, rank… or pairs.")]


def sweep(
    model: Checkpoint,
    data: JudgedData,
    output: Annotated[Path, Option("--output", "-o", help="File of JSON lines to write.")],
    task: JudgedTask = "pairs",
    limit: Annotated[int, Option(min=1, help="Judge with the first N queries.")] = 500,
    splits: Annotated[
        str | None, Option(help="Splits to measure, as 0,3,4 or 1-5; all if not given.")
    ] = None,
    train: Annotated[
        list[str] | None,
        Option(help="Pairs to distil every split on first; without, nothing is trained."),
    ] = None,
    epochs: Annotated[float | None, Option(help="Passes over the training pairs.")] = None,
    batch: Annotated[int | None, Option(help="Pairs in a step.")] = None,
    lr: Annotated[float | None, Option(help="Highest learning rate.")] = None,
    settings: Annotated[
        list[str] | None, Option("--set", help="A field of the recipe: weights.kd=0.5…")
    ] = None,
    codec: Annotated[str, Option(help="Codec of the stored passages.")] = "int8",
    candidates: Annotated[int, Option(min=1, help="Passages a query is timed on.")] = 20,
    rounds: Annotated[int, Option(min=0, help="Rounds of timing; 0 times nothing.")] = 5,
    on_error: opt.OnError = "stop",
    as_json: opt.Json = False,
) -> None:
    """Score, agreement, FLOPs, latency and bytes of every split. Run it again: it goes on."""
    from decoupled.model.codec import parse_codec
    from decoupled.model.written import layer_numbers

    parse_codec(codec)
    if output.is_dir():
        raise InputError(f"{output} is a folder; name a file of JSON lines to write")
    whole, pairs = _opened(model, data, task, on_error)
    remedy = "write 0,3,4 or 1-5"
    chosen = None if splits is None else layer_numbers("--splits", splits, remedy)
    about: dict[str, Any] = {
        "model": model,
        "data": [Path(source).name for source in data],
        "train": [Path(source).name for source in train or ()],
        "command": opt.typed_command(),
    }
    options: dict[str, Any] = {"codec": codec, "candidates": candidates, "rounds": rounds}
    options |= {"data": pairs, "out": output, "task": task, "limit": limit, "splits": chosen}
    if train:
        trained_on = {Path(source).resolve() for source in train}
        both = [source for source in data if Path(source).resolve() in trained_on]
        remedy = "the scores will be too good; judge by other pairs"
        printing.note(*(f"{source} is trained on and judged by, so {remedy}" for source in both))
        changes = recipe_changes(settings, seed=0, epochs=epochs, batch=batch, lr=lr)
        options["train"] = trained = opt.read_data(train, "stop")
        options["recipe"] = dc.recipe("distill", changes, pairs=len(trained))
    from decoupled.lab.study.sweep import sweep_table
    from decoupled.train.checkpoint import read_lines

    def on_split(line: dict[str, Any], fresh: bool) -> None:
        word = "" if fresh else ", measured before"
        printing.note(f"split {line['split']}: {line['metric']} {line['score']:.2f}{word}")

    try:
        with printing.training_bar() as bar:
            lines = dc.sweep(whole, about=about, on_split=on_split, progress=bar.told, **options)
    except KeyboardInterrupt:
        wanted = len(whole.spec.layers) + 1 if chosen is None else len({*chosen, 0})
        raise DecoupledError(
            f"stopped with {len(read_lines(output))} of {wanted} splits in {output}; run the same "
            "command to go on"
        ) from None
    facts = {"file": str(output), "splits": lines}
    printing.result(facts, as_json, lambda _: sweep_table(lines))
    if lines and lines[0].get("constant"):
        printing.note(
            f"warning: the joint model says the same of all {lines[0]['pairs']} pairs, so every split agrees "
            "with it; train it first, or judge by other pairs"
        )
    printing.note(f"{output}: {len(lines)} splits; draw them with: decoupled report {output}")


def layers(
    model: Checkpoint,
    data: JudgedData,
    task: JudgedTask = "pairs",
    output: Annotated[
        Path | None, Option("--output", "-o", help="JSON file of the curves to write.")
    ] = None,
    compare: Annotated[
        list[str] | None,
        Option(help="Another model against the joint one, as NAME=MODEL. May be repeated."),
    ] = None,
    passages: Annotated[int, Option(min=1, help="Passages to read.")] = 100,
    queries: Annotated[int, Option(min=2, help="Queries beside each passage.")] = 5,
    on_error: opt.OnError = "stop",
    as_json: opt.Json = False,
) -> None:
    """How each layer uses the other text, how far splits depart from it, and where to split."""
    named = [text.partition("=") for text in compare or ()]
    if wrong := ["".join(parts) for parts in named if not all(parts)]:
        raise InputError(
            f"--compare is {wrong[0]!r}; write NAME=MODEL, for example distilled=better"
        )
    whole, pairs = _opened(model, data, task, on_error)
    from decoupled.lab.study.layers import layer_table
    from decoupled.runtime.torch import open_model

    others = {name: open_model(source) for name, _, source in named}
    counts = {"passages": passages, "queries": queries}
    with printing.progress_bar("layers") as bar:
        study = dc.layers(whole, data=pairs, task=task, others=others, progress=bar.reach, **counts)
    facts = {
        "kind": "layers",
        "model": model,
        "task": study["task"],
        "data": [Path(source).name for source in data],
        "command": opt.typed_command(),
        **study,
    }
    printing.write(facts, output)
    printing.result(facts, as_json, layer_table)
    at = study["suggestion"]["split"]
    printing.note(f"suggested split: {at} of {study['layers']} layers, to be distilled")


def bench(
    preset: Annotated[str, Option(help="quick (under a minute), cpu or gpu.")] = "quick",
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="JSON file; a run that finds one there goes on with it."),
    ] = None,
    plot: Annotated[Path | None, Option(help="Picture to write.")] = None,
    shape: Annotated[
        list[str] | None, Option(help="Shapes to race instead of the preset's.")
    ] = None,
    top: Annotated[
        list[int] | None, Option(min=1, help="Numbers of passages instead of the preset's.")
    ] = None,
    only: Annotated[list[str] | None, Option(help="Only contenders whose name holds this.")] = None,
    turns: Annotated[int, Option(min=0, help="Turns instead of the preset's.")] = 0,
    threads: Annotated[int, Option(min=0, help="CPU threads; 0 is all cores.")] = 0,
    patience: Annotated[
        float, Option(min=0, help="Leave out a cell whose query takes more seconds.")
    ] = 0,
    work: Annotated[
        Path | None, Option(help="Folder for models and indexes, kept for the next run.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Race against other rerankers on this machine: same weights, same texts, in turns."""
    need(("torch", "torch"), *((("matplotlib", "plots"),) if plot else ()))
    from decoupled.lab.bench import report

    if output is not None and output.is_dir():
        raise InputError(f"{output} is a folder; name a JSON file to write")
    options: dict[str, Any] = {"shapes": shape, "tops": top, "only": only, "turns": turns}
    options |= {"threads": threads, "patience": patience}
    try:
        raced = dc.bench(preset, output=output, work=work, progress=printing.note, **options)
    except KeyboardInterrupt:
        again = f"{output} has what was raced, and the same command goes on"
        other = "name a file with -o, and the next race goes on where it was stopped"
        raise DecoupledError(f"stopped; {again if output else other}") from None
    if plot is not None:
        report.plot(raced["rows"], plot)
    if as_json:
        printing.document(raced)
        return
    for table in report.tables(raced["rows"]):
        printing.print_table(table)
    printing.note(*report.skipped(raced["rows"]), report.ceiling_line(raced["ceiling"]))


def report(
    sources: Annotated[
        list[Path],
        Argument(
            help="Files of sweep, layers, cost, bench or training results, or folders of them."
        ),
    ],
    output: Annotated[Path, Option("--output", "-o", help="HTML file to write.")] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None,
        Option(help="Folder for a PNG and a CSV of each figure; beside the page if not given."),
    ] = None,
    title: Annotated[str, Option(help="Title of the page.")] = "Where to split",
    as_json: opt.Json = False,
) -> None:
    """One HTML file with every figure: no network needed to open it."""
    done = dc.report(sources, output, figures=figures, title=title)
    printing.note(*(f"nothing to draw in {name}; left out" for name in done.skipped))
    if not done.pictures:
        printing.note(
            'no PNG files: matplotlib is missing; pip install "decoupled-transformer[plots]"'
        )
    printing.result(done, as_json)
    printing.note(
        f"{output}: {len(done.figures)} figures; their PNG and CSV files are in {done.folder}"
    )


def _opened(
    model: str, data: Sequence[str], task: str, on_error: str
) -> tuple[dc.Model, list[Pair]]:
    """The model and the pairs that judge it; what is wrong with them is said before it is loaded."""
    from decoupled.train.data.tasks import check_task

    check_task(task)
    pairs = opt.read_data(data, on_error)
    opt.need_torch()
    from decoupled.runtime.torch import open_model

    return open_model(model), pairs
