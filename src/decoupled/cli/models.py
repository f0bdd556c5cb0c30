"""`split`, `info`, `export` and `doctor`: models on disk, and the machine that runs them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from typer import Argument, Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing

if TYPE_CHECKING:
    from decoupled.measure.agreement import Agreement


def split(
    checkpoint: Annotated[
        str, Argument(help="Hugging Face folder or hub name, or a model folder.")
    ],
    output: opt.NewModel,
    at: Annotated[
        str,
        Option(
            help="Layer to split at: 0 is the joint model; `auto` chooses: with --data for a model that "
            "you will distil, with --check for one that you will use as it is."
        ),
    ],
    check: Annotated[
        str | None,
        Option(help="Pairs to compare with the unsplit model on: jsonl, csv, SQuAD, BEIR folder."),
    ] = None,
    data: Annotated[
        str | None,
        Option(help="Pairs from which `--at auto` reads what the layers do with both texts."),
    ] = None,
    limit: Annotated[int, Option(min=1, help="How many queries of the check to use.")] = 200,
    positions: Annotated[
        str | None, Option(help="Positions of a passage: restart, offset, or joint at 0.")
    ] = None,
    cross_embed: Annotated[
        str, Option(help="New tables at the start of the cross component: none, add, add_ln.")
    ] = "none",
    one_way: Annotated[
        str | None,
        Option(help="Layers where only the query advances: auto, or 4-6, or 4,5; then distill."),
    ] = None,
    passage_tokens: Annotated[
        int | None, Option(help="Longest window of a passage; longer texts get several.")
    ] = None,
    stride: Annotated[
        int | None, Option(help="Tokens from one window of a long text to the next.")
    ] = None,
    rank_label: Annotated[
        str | None,
        Option(
            help="Of a classifier of two labels, the one that means relevant: ranks by its odds."
        ),
    ] = None,
    keep: Annotated[
        float, Option(min=0, max=1, help="Agreement that `--at auto --check` must keep.")
    ] = 0.9,
    as_json: opt.Json = False,
) -> None:
    """Split a pair encoder at a layer; the weights stay as they are."""
    from decoupled.measure.agreement import deepest_split

    layer = None if at == "auto" else opt.parsed("--at", at, int, "give a layer number or auto")
    opt.need_torch()
    from decoupled.measure.agreement import agreements
    from decoupled.model.spec import CrossEmbed, Positions
    from decoupled.model.written import one_way_layers

    options: dict[str, Any] = {"passage_tokens": passage_tokens, "stride": stride}
    options["positions"] = positions and opt.one_of("--positions", positions, get_args(Positions))
    options["cross_embed"] = opt.one_of("--cross-embed", cross_embed, get_args(CrossEmbed))
    options["one_way"] = one_way_layers(one_way)
    whole = dc.Model.open(checkpoint)
    whole = whole if rank_label is None else whole.rank_by(rank_label)
    measured: list[Agreement] = []
    if layer is None and data:
        layer = _suggested(whole, data, limit)
    if layer is None and check:
        model, measured = deepest_split(
            whole, dc.read_pairs(check), keep=keep, limit=limit, **options
        )
        printing.note(f"split at {model.spec.split}: the deepest that keeps {keep:.0%} agreement")
    else:
        model = dc.Model.split(whole, at="auto" if layer is None else layer, **options)
        if layer is None:
            printing.note(
                f"split at {model.spec.split}, half of the layers; --data DATA measures instead"
            )
        elif check:
            measured = agreements(whole, [model], dc.read_pairs(check), limit=limit)
    model.save(output)
    _report_split(model, output, measured, as_json)


def info(
    path: Annotated[Path, Argument(help="A model folder or an index.")], as_json: opt.Json = False
) -> None:
    """Say what a model or an index holds."""
    from decoupled.measure.info import info as facts_of

    facts = facts_of(path)
    worded = {name.replace("_", " "): value for name, value in facts.items()}
    printing.result(facts, as_json, lambda _: printing.facts(worded))


def export(
    model: Annotated[Path, Argument(help="A model folder, or an index for the model in it.")],
    runtime: Annotated[str, Option(help="openvino.")] = "openvino",
    int8: Annotated[bool, Option("--int8", help="Calibrate, so that it multiplies bytes.")] = False,
    calibrate: Annotated[
        list[str] | None,
        Option(help="Pairs to calibrate on, or passages; the samples if not given."),
    ] = None,
    limit: Annotated[int, Option(min=1, help="How many pairs to calibrate on.")] = 256,
    as_json: opt.Json = False,
) -> None:
    """Make a model folder run without torch; with --int8 several times faster on most CPUs."""
    from decoupled.search.export import exported_lines

    with printing.progress_bar("calibrating") as bar:
        options: dict[str, Any] = {"int8": int8, "calibrate": calibrate or (), "limit": limit}
        facts = dc.export(model, runtime=runtime, progress=bar.reach, **options)
    printing.result(facts, as_json, lambda _: printing.note(*exported_lines(facts, model)))


def doctor(as_json: opt.Json = False) -> None:
    """Say what this machine can run, and what to install for the rest."""
    from decoupled.runtime.doctor import doctor as examine

    printing.result(examine(), as_json, _show_machine)


def _show_machine(facts: dict[str, dict[str, Any]]) -> None:
    printing.facts(facts["machine"] | facts["packages"])
    for what in ("runtime", "command"):
        printing.table((what, "state"), list(facts[f"{what}s"].items()))


def _suggested(whole: dc.Model, data: str, limit: int) -> int:
    from decoupled.lab.study.study import suggest_split

    pairs = opt.read_data([data], "stop")
    with printing.progress_bar("layers") as bar:
        suggestion = suggest_split(whole, pairs, limit=limit, progress=bar.reach)
    left = suggestion.remaining[suggestion.split]
    printing.note(
        f"split at {suggestion.split}: the deepest that leaves {left:.0%} of the attention between both "
        "texts above it; distil it next"
    )
    return suggestion.split


def _report_split(model: dc.Model, output: Path, measured: list[Agreement], as_json: bool) -> None:
    from decoupled.measure.agreement import agreement_table, split_facts, split_lines

    mine = [agreement for agreement in measured if agreement.split == model.spec.split]
    printing.note(*(f"warning: {one.advice}" for one in mine if one.fell))
    if as_json:
        printing.document({"model": str(output), **split_facts(model, measured)})
        return
    if measured:
        printing.print_table(agreement_table(measured))
    first, *rest = split_lines(model.spec)
    printing.note(f"{output}: {first}", *rest)
