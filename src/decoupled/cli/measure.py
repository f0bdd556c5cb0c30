"""`evaluate`, `sweep`, `layers`, `bench`, `cost` and `report`: what is measured, as one page in the end."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.cli.index import build
from decoupled.cli.train import Rate, Sets
from decoupled.errors import InputError, need
from decoupled.train.settings import recipe_changes

if TYPE_CHECKING:
    from decoupled.index.documents import Pair

Checkpoint = Annotated[
    str, Argument(metavar="MODEL", help="Fine-tuned checkpoint, hub name or model folder.")
]
JudgedData = Annotated[list[str], Option(help="Judged pairs. May be repeated.")]
JudgedTask = Annotated[str, Option(help="squad, race, boolq, mnli, mrpc, rank… or pairs.")]


def evaluate(
    task: Annotated[
        str, Option(help="squad, squad2, race, boolq, mnli, qqp, mrpc, pairs, retrieval…")
    ],
    data: Annotated[
        list[Path], Option(help="Labelled pairs; for retrieval a BEIR folder. May be repeated.")
    ],
    model: opt.Bundled = None,
    index: Annotated[
        Path | None, Option(help="Index of the corpus; for pairs, the index whose model it is.")
    ] = None,
    codec: Annotated[str | None, Option(help="Codec of an index that is made.")] = None,
    codec_bits: Annotated[
        int | None, Option(help="Pairs: read passage states as 8 or 4 bits give them back.")
    ] = None,
    threshold: Annotated[
        float | None,
        Option(
            help="squad2: no answer when its logit is higher by more than this; not as ask does."
        ),
    ] = None,
    limit: Annotated[int | None, Option(min=1, help="Use the first N queries.")] = None,
    candidates: Annotated[int, Option(min=1, help="Records that are reranked.")] = 100,
    on_error: opt.OnError = "stop",
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Measure a model on judged data. Pairs are scored by torch unless --runtime names another."""
    from decoupled.index.manifest import model_folder, read_manifest
    from decoupled.measure.retrieval import evaluate_retrieval
    from decoupled.runtime.open import check_name

    check_name(runtime)
    if missing := [place for place in data if not place.exists()]:
        raise InputError(f"{missing[0]} does not exist; give a file or folder of judged data")
    options: dict[str, Any] = {"limit": limit, "runtime": runtime}
    if task != "retrieval":
        if index is not None and model is None:
            read_manifest(index)
            model = str(model_folder(index))
        options |= {"bits": codec_bits, "threshold": threshold}
        metrics = _metrics(data, task, on_error, model, options)
        printing.result(metrics, as_json, printing.facts)
        return
    if len(data) > 1:
        raise InputError("--data is repeated; retrieval takes one folder in BEIR's layout")
    from decoupled.measure.retrieval import judged_queries, stage_table

    judged_queries(data[0], limit)
    with tempfile.TemporaryDirectory() as scratch:
        path = index or Path(scratch) / "corpus.idx"
        if index is None:
            build([str(data[0])], path, on_error, model=model, codec=codec, runtime=runtime)
        with printing.progress_bar("queries") as bar:
            options |= {"candidates": candidates, "progress": bar.reach}
            stages = evaluate_retrieval(path, data[0], **options)
    facts = {"task": task, "stages": [stage.to_json() for stage in stages]}
    printing.result(facts, as_json, lambda _: stage_table(stages))


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

    parse_codec(codec)
    if output.is_dir():
        raise InputError(f"{output} is a folder; name a file of JSON lines to write")
    whole, pairs, about = _opened(model, data, task, on_error)
    chosen = None if splits is None else layer_numbers("--splits", splits, "write 0,3,4 or 1-5")
    about["train"] = [Path(source).name for source in train or ()]
    options: dict[str, Any] = {"codec": codec, "candidates": candidates, "rounds": rounds}
    options |= {"data": pairs, "out": output, "task": task, "limit": limit, "splits": chosen}
    if train:
        trained_on = {Path(source).resolve() for source in train}
        both = [source for source in data if Path(source).resolve() in trained_on]
        remedy = "the scores will be too good; judge by other pairs"
        printing.note(*(f"{source} is trained on and judged by, so {remedy}" for source in both))
        changes = recipe_changes(settings, seed=0, epochs=epochs, batch=batch, lr=lr)
        options["train"] = trained = opt.read_data(train, "stop")
        options["recipe"] = make_recipe("distill", changes, pairs=len(trained))
    from decoupled.lab.study.sweep import sweep_table
    from decoupled.train.loop.checkpoint import read_lines

    def on_split(line: dict[str, Any], fresh: bool) -> None:
        word = "" if fresh else ", measured before"
        printing.note(f"split {line['split']}: {line['metric']} {line['score']:.2f}{word}")

    def stopped() -> str:
        wanted = len(whole.spec.layers) + 1 if chosen is None else len({*chosen, 0})
        measured = f"{len(read_lines(output))} of {wanted} splits"
        return f"stopped with {measured} in {output}; run the same command to go on"

    with printing.training_bar() as bar, printing.stoppable(stopped):
        lines = dc.sweep(whole, about=about, on_split=on_split, progress=bar.told, **options)
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
    from decoupled.lab.study.study import layers as study_layers

    named = [text.partition("=") for text in compare or ()]
    if wrong := ["".join(parts) for parts in named if not all(parts)]:
        raise InputError(
            f"--compare is {wrong[0]!r}; write NAME=MODEL, for example distilled=better"
        )
    whole, pairs, about = _opened(model, data, task, on_error)
    from decoupled.lab.study.layers import layer_table
    from decoupled.runtime.torch import open_model

    others = {name: open_model(source) for name, _, source in named}
    counts = {"passages": passages, "queries": queries}
    with printing.progress_bar("layers") as bar:
        study = study_layers(
            whole, data=pairs, task=task, others=others, progress=bar.reach, **counts
        )
    facts = {"kind": "layers", **about, **study}
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
    from decoupled.lab.bench.race import bench as race

    need(("torch", "torch"), *((("matplotlib", "plots"),) if plot else ()))
    from decoupled.lab.bench import report

    if output is not None and output.is_dir():
        raise InputError(f"{output} is a folder; name a JSON file to write")
    options: dict[str, Any] = {"shapes": shape, "tops": top, "only": only, "turns": turns}
    options |= {"threads": threads, "patience": patience}
    rest = "name a file with -o, and the next race goes on where it was stopped"
    if output is not None:
        rest = f"{output} has what was raced, and the same command goes on"
    with printing.stoppable(lambda: f"stopped; {rest}"):
        raced = race(preset, output=output, work=work, progress=printing.note, **options)
    if plot is not None:
        report.plot(raced["rows"], plot)
    if as_json:
        printing.document(raced)
        return
    for table in report.tables(raced["rows"]):
        printing.print_table(table)
    printing.note(*report.skipped(raced["rows"]), report.ceiling_line(raced["ceiling"]))


def cost(
    passages: Annotated[int, Option(min=1, help="Passages in the index.")] = 1_000_000,
    tokens: Annotated[float, Option(help="Mean tokens of a passage.")] = 150,
    width: Annotated[int, Option(min=1, help="Width of the states.")] = 768,
    codec: Annotated[str, Option(help="How states are stored: fp16, project:192+int8…")] = "fp16",
    queries: Annotated[float, Option(help="Queries a day.")] = 1_000_000,
    candidates: Annotated[int, Option(min=1, help="Passages scored for each query.")] = 1,
    joint_ms: Annotated[
        float, Option(help="Device time of a pair in the joint model; the paper's if not given.")
    ] = 4600 / 640,
    split_ms: Annotated[
        float | None,
        Option(help="The same in the cross component.", show_default="0.30 of --joint-ms"),
    ] = None,
    index_ms: Annotated[float, Option(help="Device time to encode a passage once.")] = 0,
    device_hour: Annotated[float, Option(help="Dollars for an hour of the device.")] = 2.48,
    reads: Annotated[float, Option(help="Dollars for 10,000 reads of the store.")] = 0.004,
    gb_month: Annotated[float, Option(help="Dollars for a GB kept a month.")] = 0.02,
    output: Annotated[Path | None, Option("--output", "-o", help="JSON file for `report`.")] = None,
    plot: Annotated[
        Path | None, Option(help="Picture of the money to write: .svg or .png.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Storage and money in a month, joint and split. Without options: the example of DeFormer's paper.

    The paper prints 61.7 for the split and keeps 226 GB; its passages take 230.4, so that it is 61.82 here.
    """
    from decoupled.lab.cost import cost as monthly_cost

    load: dict[str, Any] = {"passages": passages, "tokens": tokens, "width": width, "codec": codec}
    load |= {"queries": queries, "candidates": candidates}
    load |= {"joint_ms": joint_ms, "split_ms": split_ms, "index_ms": index_ms}
    bill = monthly_cost(**load, device_hour=device_hour, reads=reads, gb_month=gb_month)
    facts = {"kind": "cost", "command": opt.typed_command(), **bill}
    printing.write(facts, output)
    if plot is not None:
        from decoupled.lab.report.money import plot_money

        plot_money(facts, plot)
    printing.result(facts, as_json, _show_cost)


def report(
    sources: Annotated[
        list[Path],
        Argument(
            help="Files of sweep, layers, cost, bench, adapt or training results, or folders of them."
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
    from decoupled.lab.report.write import report as write_report

    done = write_report(sources, output, figures=figures, title=title)
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
) -> tuple[dc.Model, list[Pair], dict[str, Any]]:
    """The model, the pairs that judge it, and both in words; what is wrong is said before it is loaded."""
    from decoupled.train.data.tasks import check_task

    check_task(task)
    pairs = opt.read_data(data, on_error)
    opt.need_torch()
    from decoupled.runtime.torch import open_model

    about = {"model": model, "data": [Path(source).name for source in data]}
    return open_model(model), pairs, {**about, "command": opt.typed_command()}


def _metrics(
    data: list[Path], task: str, on_error: str, model: str | None, options: dict[str, Any]
) -> dict[str, Any]:
    from decoupled.train.data.tasks import check_task

    if options["bits"] not in (None, 4, 8):
        raise InputError(f"--codec-bits is {options['bits']}; choose 8 or 4")
    check_task(task, "retrieval")
    pairs = opt.read_data(data, on_error)
    if options["bits"] and options["runtime"] not in ("auto", "torch"):
        raise InputError("--codec-bits is for torch; index the passages to store them")
    opt.need_torch()
    with printing.progress_bar("pairs") as bar:
        return dc.evaluate(model, data=pairs, task=task, progress=bar.reach, **options)


def _show_cost(facts: dict[str, Any]) -> None:
    from decoupled.lab.cost import bill_table, described

    printing.print_table(bill_table(facts))
    printing.facts(described(facts))
