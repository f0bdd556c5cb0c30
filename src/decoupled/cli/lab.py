"""`decoupled lab`: `layers`, `sweep`, `bench`, `cost`, `plan` and `report`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.cli.train import Rate, Sets
from decoupled.errors import InputError
from decoupled.train.settings import recipe_changes

if TYPE_CHECKING:
    from decoupled.lab.capacity import Planned
    from decoupled.measure.pairs import Pair

Checkpoint = Annotated[str, Argument(metavar="MODEL", help="Checkpoint, hub name or model folder.")]
JOINT_MS = 4600 / 640  # device time of a pair in the joint model of DeFormer's example
JudgedData = Annotated[list[str], Option(help="Judged pairs. May be repeated.")]
JudgedTask = Annotated[str, Option(help="squad, race, boolq, mnli, mrpc, rank… or pairs.")]


def sweep(
    model: Checkpoint,
    data: JudgedData,
    output: Annotated[Path, Option("--output", "-o", help="File of JSON lines to write.")],
    task: JudgedTask = "pairs",
    limit: Annotated[int, Option(min=1, help="Judge with the first N queries.")] = 500,
    splits: Annotated[str | None, Option(help="Splits, as 0,3,4 or 1-5; all if not given.")] = None,
    train: Annotated[list[str] | None, Option(help="Pairs to distil every split on first.")] = None,
    epochs: Annotated[float | None, opt.rare(help="Passes over the training pairs.")] = None,
    batch: Annotated[int | None, opt.rare(help="Pairs in a step.")] = None,
    lr: Rate = None,
    settings: Sets = None,
    codec: Annotated[str, Option(help="Codec of the stored passages.")] = "int8",
    candidates: Annotated[int, Option(min=1, help="Passages a query is timed on.")] = 20,
    rounds: Annotated[int, Option(min=0, help="Rounds of timing; 0 times nothing.")] = 5,
    on_error: opt.OnError = "stop",
    as_json: opt.Json = False,
) -> None:
    """Score, agreement, FLOPs, latency and bytes of every split. Run it again: it goes on."""
    from decoupled.model.codec import parse_codec
    from decoupled.model.written import layer_numbers
    from decoupled.train.run import recipe as make_recipe

    parse_codec(codec)  # an unknown one is said before anything is measured
    if output.is_dir():
        raise InputError(f"{output} is a folder; name a file of JSON lines to write")
    whole, pairs, about = _opened(model, data, task, on_error)
    chosen = None if splits is None else layer_numbers("splits", splits, "write 0,3,4 or 1-5")
    about["train"] = [Path(source).name for source in train or ()]
    trained_on = recipe = None
    if train:
        files = {Path(source).resolve() for source in train}
        both = [source for source in data if Path(source).resolve() in files]
        remedy = "the scores will be too good; judge by other pairs"
        printing.note(*(f"{source} is trained on and judged by, so {remedy}" for source in both))
        changes = recipe_changes(settings, seed=0, epochs=epochs, batch=batch, lr=lr)
        trained_on = opt.read_data(train, "stop")
        recipe = make_recipe("distill", changes, pairs=len(trained_on))
    from decoupled.lab.study.sweep import constant_warning, stopped_line, sweep_table

    def on_split(line: dict[str, Any], fresh: bool) -> None:
        word = "" if fresh else ", measured before"
        printing.note(f"split {line['split']}: {line['metric']} {line['score']:.2f}{word}")

    stopped = partial(stopped_line, output, len(whole.spec.layers), chosen)
    with printing.training_bar() as bar, printing.stoppable(stopped):
        run = partial(dc.sweep, whole, data=pairs, out=output, task=task, limit=limit)
        run = partial(run, splits=chosen, train=trained_on, recipe=recipe or "distill")
        run = partial(run, codec=codec, candidates=candidates, rounds=rounds)
        lines = run(about=about, on_split=on_split, progress=bar.log)
    facts = {"file": str(output), "splits": lines}
    printing.result(facts, as_json, lambda _: sweep_table(lines))
    printing.note(*constant_warning(lines))
    printing.note(f"{output}: {len(lines)} splits; draw them with: decoupled lab report {output}")


def layers(
    model: Checkpoint,
    data: JudgedData,
    task: JudgedTask = "pairs",
    output: opt.Result = None,
    compare: Annotated[list[str] | None, Option(help="NAME=MODEL to compare; repeatable.")] = None,
    passages: Annotated[int, Option(min=1, help="Passages to read.")] = 100,
    queries: Annotated[int, Option(min=2, help="Queries beside each passage.")] = 5,
    on_error: opt.OnError = "stop",
    as_json: opt.Json = False,
) -> None:
    """How each layer uses the other text, and how far splits depart from the joint model."""
    from decoupled.lab.study.layers import layer_table
    from decoupled.lab.study.layers import layers as study_layers

    named = [text.partition("=") for text in compare or ()]
    if wrong := ["".join(parts) for parts in named if not all(parts)]:
        raise InputError(f"--compare is {wrong[0]!r}; write NAME=MODEL, such as better=FOLDER")
    whole, pairs, about = _opened(model, data, task, on_error)
    from decoupled.runtime.torch import open_model

    others = {name: open_model(source) for name, _, source in named}
    with printing.progress_bar("layers") as bar:
        run = partial(study_layers, whole, data=pairs, task=task, others=others)
        study = run(passages=passages, queries=queries, progress=bar.reach)
    facts = {"kind": "layers", **about, **study}
    printing.write(facts, output)
    printing.result(facts, as_json, layer_table)


def bench(
    preset: Annotated[str, Option(help="quick (under a minute), cpu or gpu.")] = "quick",
    output: opt.Result = None,
    shape: Annotated[list[str] | None, Option(help="Shapes instead of the preset's.")] = None,
    top: Annotated[list[int] | None, Option(min=1, help="How many passages to rank.")] = None,
    only: Annotated[list[str] | None, Option(help="Only contenders whose name holds this.")] = None,
    turns: Annotated[int, Option(min=0, help="Turns instead of the preset's.")] = 0,
    threads: Annotated[int, Option(min=0, help="CPU threads; 0 is all cores.")] = 0,
    patience: Annotated[float, Option(min=0, help="Skip a cell whose query takes longer.")] = 0,
    work: Annotated[Path | None, Option(help="Folder that keeps models and indexes.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Race against other rerankers on this machine: same weights, same texts, in turns."""
    from decoupled.lab.bench.race import bench as race

    opt.need_torch()
    from decoupled.lab.bench import report

    if output is not None and output.is_dir():
        raise InputError(f"{output} is a folder; name a JSON file to write")
    goes_on = f"{output} has what was raced, and the same command goes on"
    rest = goes_on if output else "with -o FILE a race can go on"
    with printing.stoppable(lambda: f"stopped; {rest}"):
        run = partial(race, preset, output=output, work=work, shapes=shape, tops=top, only=only)
        raced = run(turns=turns, threads=threads, patience=patience, progress=printing.note)
    if as_json:
        printing.document(raced)
        return
    for table in report.tables(raced["rows"]):
        printing.print_table(table)
    printing.note(*report.skipped(raced["rows"]))


def cost(
    passages: Annotated[int, Option(min=1, help="Passages in the index.")] = 1_000_000,
    tokens: Annotated[float, Option(help="Mean tokens of a passage.")] = 150,
    width: Annotated[int, Option(min=1, help="Width of the states.")] = 768,
    codec: Annotated[str, Option(help="How states are stored: fp16, project:192+int8…")] = "fp16",
    queries: Annotated[float, Option(help="Queries a day.")] = 1_000_000,
    candidates: Annotated[int, Option(min=1, help="Passages scored for each query.")] = 1,
    joint_ms: Annotated[float, Option(help="Device time of a pair, joint.")] = JOINT_MS,
    split_ms: Annotated[
        float | None, Option(help="The same, split.", show_default="0.30 of --joint-ms")
    ] = None,
    index_ms: Annotated[float, opt.rare(help="Device time to encode a passage once.")] = 0,
    device_hour: Annotated[float, Option(help="Dollars for an hour of the device.")] = 2.48,
    reads: Annotated[float, opt.rare(help="Dollars for 10,000 reads of the store.")] = 0.004,
    gb_month: Annotated[float, opt.rare(help="Dollars for a GB kept a month.")] = 0.02,
    output: opt.Result = None,
    as_json: opt.Json = False,
) -> None:
    """Storage and money in a month, joint and split. Without options: the example of DeFormer's paper.

    The paper prints 61.7 for the split and keeps 226 GB; its passages take 230.4, so that it is 61.82 here.
    """
    from decoupled.lab.cost import cost as monthly_cost

    bill = partial(monthly_cost, passages=passages, tokens=tokens, width=width, codec=codec)
    bill = partial(bill, queries=queries, candidates=candidates)
    bill = partial(bill, joint_ms=joint_ms, split_ms=split_ms, index_ms=index_ms)
    facts = bill(device_hour=device_hour, reads=reads, gb_month=gb_month)
    facts = {"kind": "cost", "command": opt.typed_command(), **facts}
    printing.write(facts, output)
    printing.result(facts, as_json, _show_cost)


def plan(
    passages: Annotated[str, Option(help="How many: 250000, 3M, 1.5B.")],
    tokens: Annotated[int, Option(min=1, help="Tokens of a passage.")] = 150,
    codec: Annotated[str | None, Option(help="How states are stored, as for `index`.")] = None,
    rate: Annotated[float, Option(help="Queries per second.")] = 1.0,
    latency: Annotated[float, Option(help="Milliseconds that a query may take.")] = 1000.0,
    candidates: Annotated[int, Option(min=1, help="Records that a query scores.")] = 100,
    workers: Annotated[int, Option(min=1, help="Processes that build.")] = 1,
    model: opt.Starter = None,
    as_json: opt.Json = False,
) -> None:
    """Say how many shards, how much disk, memory and time an index needs, by rates of this machine."""
    from decoupled.lab.capacity import plan as plan_capacity

    estimate = partial(plan_capacity, passages, tokens=tokens, codec=codec, model=model)
    estimate = partial(estimate, rate=rate, latency=latency)
    planned = estimate(candidates=candidates, workers=workers)
    printing.result(planned, as_json, _show_plan)


def report(
    sources: Annotated[list[Path], Argument(help="Files of sweep, layers, bench, adapt, certify.")],
    output: Annotated[Path, Option("--output", "-o", help="HTML page.")] = Path("report.html"),
    figures: Annotated[Path | None, Option(help="Folder for a PNG and a CSV of each.")] = None,
    title: Annotated[str, Option(help="Title of the page.")] = "Where to split",
    as_json: opt.Json = False,
) -> None:
    """One HTML file with every figure: no network needed to open it."""
    from decoupled.lab.report.write import report as write_report

    done = write_report(sources, output, figures=figures, title=title)
    printing.note(*(f"nothing to draw in {name}; left out" for name in done.skipped))
    printing.result(done, as_json)
    printing.note(
        f"{output}: {len(done.figures)} figures; their PNG and CSV files are in {done.folder}"
    )


def _opened(
    model: str, data: Sequence[str], task: str, on_error: str
) -> tuple[dc.Model, list[Pair], dict[str, Any]]:
    """The model, the pairs that judge it, and both as facts for the result's file."""
    from decoupled.train.data.tasks import check_task

    check_task(task)
    pairs = opt.read_data(data, on_error)
    opt.need_torch()
    from decoupled.runtime.torch import open_model

    about = {"model": model, "data": [Path(source).name for source in data]}
    return open_model(model), pairs, {**about, "command": opt.typed_command()}


def _show_cost(facts: dict[str, Any]) -> None:
    from decoupled.lab.cost import bill_table, described

    printing.print_table(bill_table(facts))
    printing.facts(described(facts))


def _show_plan(planned: Planned) -> None:
    printing.note(*(f"warning: {line}" for line in planned.warnings()))
    printing.facts(planned.described())
    printing.note(*(f"assumed: {line}" for line in planned.assumptions))
