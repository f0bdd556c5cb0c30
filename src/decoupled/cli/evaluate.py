"""`evaluate` and `cost`: how good a model is on judged data, and what it costs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

from typer import Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.cli.index import build
from decoupled.errors import InputError


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
    from decoupled.runtime.open import check_name

    check_name(runtime)
    for place in data:
        if not place.exists():
            raise InputError(f"{place} does not exist; give a file or folder of judged data")
    options: dict[str, Any] = {"limit": limit, "runtime": runtime}
    if task != "retrieval":
        options |= {"bits": codec_bits, "threshold": threshold}
        metrics = _metrics(data, task, on_error, model or _model_of(index), options)
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
            stages = dc.evaluate_retrieval(path, data[0], **options)
    facts = {"task": task, "stages": [stage.to_json() for stage in stages]}
    printing.result(facts, as_json, lambda _: stage_table(stages))


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

    It prints 61.7 for the split: 226 GB are kept there, of the 230.4 that its passages take here.
    """
    load: dict[str, Any] = {"passages": passages, "tokens": tokens, "width": width, "codec": codec}
    load |= {"queries": queries, "candidates": candidates}
    load |= {"joint_ms": joint_ms, "split_ms": split_ms, "index_ms": index_ms}
    bill = dc.cost(**load, device_hour=device_hour, reads=reads, gb_month=gb_month)
    facts = {"kind": "cost", "command": opt.typed_command(), **bill}
    printing.write(facts, output)
    if plot is not None:
        from decoupled.lab.report.money import plot_money

        plot_money(facts, plot)
    printing.result(facts, as_json, _show_cost)


def _metrics(
    data: list[Path], task: str, on_error: str, model: str | Path, options: dict[str, Any]
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


def _model_of(index: Path | None) -> Path:
    from decoupled.index.manifest import model_folder, read_manifest
    from decoupled.model.folder import starter_model

    if index is None:
        return starter_model()
    read_manifest(index)
    return model_folder(index)


def _show_cost(facts: dict[str, Any]) -> None:
    from decoupled.measure.money import bill_table, described

    printing.print_table(bill_table(facts))
    printing.facts(described(facts))
