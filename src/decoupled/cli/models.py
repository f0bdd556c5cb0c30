"""`split`, `evaluate`, `info`, `export` and `doctor`: models, and the machine that runs them."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from typer import Argument, Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.cli.index import building
from decoupled.errors import InputError

if TYPE_CHECKING:
    from decoupled.measure.agreement import Agreement
    from decoupled.measure.retrieval import StageScores


def split(
    checkpoint: Annotated[str, Argument(help="Hugging Face folder, hub name or model folder.")],
    output: opt.NewModel,
    at: Annotated[
        str,
        Option(help="Layer; 0 is joint; auto: the deepest that agrees on the pairs of --check."),
    ],
    check: Annotated[str | None, Option(help="Pairs to compare with the unsplit model.")] = None,
    limit: Annotated[int, Option(min=1, help="How many queries of the check to use.")] = 200,
    positions: Annotated[
        str | None, Option(help="Passages begin: typical, restart, offset.")
    ] = None,
    cross_embed: Annotated[str, Option(help="Tables above the split: none, add, add_ln.")] = "none",
    one_way: Annotated[str | None, Option(help="Query-only layers: auto, or 4-6, or 4,5.")] = None,
    passage_tokens: Annotated[int | None, Option(help="Longest window of a passage.")] = None,
    stride: Annotated[int | None, opt.rare(help="Tokens from one window to the next.")] = None,
    rank_label: Annotated[
        str | None, Option(help="Of two labels the one that means relevant: ranks by its odds.")
    ] = None,
    keep: Annotated[float, Option(min=0, max=1, help="Agreement that `auto` must keep.")] = 0.9,
    template: Annotated[str | None, opt.rare(help="Prompt of a decoder: name or file.")] = None,
    store: Annotated[str, opt.rare(help="Of a passage: state, or kv (exact decoders).")] = "state",
    as_json: opt.Json = False,
) -> None:
    """Split a pair encoder at a layer; the weights stay as they are."""
    layer = None if at == "auto" else opt.parsed("--at", at, int, "give a layer number or auto")
    if layer is None and check is None:
        raise InputError(
            "--at auto measures every layer; name the pairs to compare on: --check DATA"
        )
    opt.need_torch()
    from decoupled.measure.agreement import agreements, deepest_split
    from decoupled.model.spec import CrossEmbed, Positions, Stored
    from decoupled.model.written import one_way_layers

    opt.one_of("--positions", positions or "typical", get_args(Positions))
    opt.one_of("--cross-embed", cross_embed, get_args(CrossEmbed))
    opt.one_of("--store", store, get_args(Stored))
    how: dict[str, Any] = {"positions": positions, "cross_embed": cross_embed, "store": store}
    how |= {"one_way": one_way_layers(one_way), "passage_tokens": passage_tokens, "stride": stride}
    whole = dc.Model.open(checkpoint, template)
    whole = whole if rank_label is None else whole.rank_by(rank_label)
    measured: list[Agreement] = []
    if layer is None:
        deepest = partial(deepest_split, whole, dc.read_pairs(check or ""), keep=keep, limit=limit)
        model, measured = deepest(**how)
        printing.note(f"split at {model.spec.split}: the deepest that keeps {keep:.0%} agreement")
    else:
        model = dc.Model.split(whole, at=layer, **how)
    if check and not measured:
        measured = agreements(whole, [model], dc.read_pairs(check), limit=limit)
    model.save(output)
    _report_split(model, output, measured, as_json)


def certify(
    model: Annotated[Path, Argument(help="A split model folder.")],
    teacher: Annotated[str | None, Option(help="The joint checkpoint, if it moved.")] = None,
    data: Annotated[Path | None, Option(help="Pairs to rank, if not the bundled ones.")] = None,
    codec: Annotated[str | None, Option(help="How passages are stored, as for `index`.")] = None,
    limit: Annotated[int | None, Option(min=1, help="Use the first N queries.")] = None,
    card: Annotated[Path | None, Option(help="Write the table as Markdown here.")] = None,
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Compare a split model with its joint model: agreement, quality, speed and bytes."""
    from decoupled.measure.certify import certify as measure

    with printing.progress_bar("queries") as bar:
        run = partial(measure, model, teacher=teacher, data=data, codec=codec, limit=limit)
        certificate = run(runtime=runtime, progress=bar.reach)
    if card is not None:
        card.write_text(certificate.card(), encoding="utf-8")
    printing.result(certificate, as_json)


def evaluate(
    data: Annotated[
        list[Path], Option("--data", "--qrels", help="Judged pairs; or a BEIR folder.")
    ],
    task: Annotated[str, Option(help="squad, squad2, race, boolq, mnli, pairs…")] = "retrieval",
    ranked: Annotated[Path | None, Option("--run", help="Score this TREC run by --qrels.")] = None,
    model: opt.Starter = None,
    index: Annotated[Path | None, Option(help="Index of the corpus, or of the model.")] = None,
    codec: Annotated[str | None, Option(help="Codec of an index that is made.")] = None,
    codec_bits: Annotated[int | None, Option(help="Pairs: states in 8 or 4 bits.")] = None,
    threshold: Annotated[
        float | None, Option(help="squad2: no answer where its logit is higher by more than this.")
    ] = None,
    limit: Annotated[int | None, Option(min=1, help="Use the first N queries.")] = None,
    candidates: Annotated[int, Option(min=1, help="Records that are reranked.")] = 100,
    on_error: opt.OnError = "stop",
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Measure a model on judged data. Pairs are scored by torch unless --runtime names another."""
    from decoupled.index.manifest import model_folder, read_manifest
    from decoupled.measure.retrieval import judgments, stage_table
    from decoupled.measure.runs import read_run, score_run
    from decoupled.runtime.open import check_name
    from decoupled.train.data.tasks import check_task

    check_name(runtime)
    if task == "retrieval":
        if len(data) > 1:
            raise InputError("--data is repeated; retrieval takes one folder in BEIR's layout")
        if ranked is not None:
            scores = score_run(read_run(ranked), judgments(data[0]))
            return printing.result(scores, as_json, printing.facts)
        stages = _retrieval(data[0], model, index, codec, limit, candidates, on_error, runtime)
        facts = {"task": task, "stages": [stage.to_json() for stage in stages]}
        printing.result(facts, as_json, lambda _: stage_table(stages))
        return
    if index is not None and model is None:
        read_manifest(index)
        model = str(model_folder(index))
    if codec_bits not in (None, 4, 8):
        raise InputError(f"--codec-bits is {codec_bits}; choose 8 or 4")
    check_task(task, "retrieval")
    pairs = opt.read_data(data, on_error)
    if codec_bits and runtime not in ("auto", "torch"):
        raise InputError("--codec-bits is for torch; index the passages to store them")
    opt.need_torch()
    with printing.progress_bar("pairs") as bar:
        run = partial(dc.evaluate, model, data=pairs, task=task, limit=limit, bits=codec_bits)
        metrics = run(threshold=threshold, runtime=runtime, progress=bar.reach)
    printing.result(metrics, as_json, printing.facts)


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
    runtime: Annotated[str, Option(help="openvino, or onnx: graphs.")] = "openvino",
    int8: Annotated[bool, Option("--int8", help="Calibrate, so that it multiplies bytes.")] = False,
    calibrate: Annotated[
        list[str] | None,
        Option(help="Pairs to calibrate on, or passages; the samples if not given."),
    ] = None,
    limit: Annotated[int, Option(min=1, help="How many pairs to calibrate on.")] = 256,
    as_json: opt.Json = False,
) -> None:
    """Make a model folder run without torch; with --int8 several times faster on most CPUs."""
    from decoupled.train.export import exported_lines

    with printing.progress_bar("calibrating") as bar:
        run = partial(dc.export, model, runtime=runtime, int8=int8, calibrate=calibrate or ())
        facts = run(limit=limit, progress=bar.reach)
    printing.result(facts, as_json, lambda _: printing.note(*exported_lines(facts, model)))


def push(
    model: Annotated[Path, Argument(help="A model folder.")],
    name: Annotated[str, Argument(help="Its name on the hub: you/model, or you/model@branch.")],
    licence: Annotated[str | None, Option("--license", help="Else that of its checkpoint.")] = None,
    private: Annotated[bool, Option("--private", help="A new repository is private.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Push a model folder to a Hugging Face hub, with a card that says what it is."""
    from decoupled.train.push import push as upload

    printing.result(upload(model, name, licence=licence, private=private), as_json, printing.facts)


def doctor(as_json: opt.Json = False) -> None:
    """Say what this machine can run, and what to install for the rest."""
    from decoupled.runtime.doctor import doctor as examine

    printing.result(examine(), as_json, _show_machine)


def _show_machine(facts: dict[str, dict[str, Any]]) -> None:
    printing.facts(facts["machine"] | facts["packages"])
    for what in ("runtime", "command"):
        printing.table((what, "state"), list(facts[f"{what}s"].items()))


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


def _retrieval(
    data: Path,
    model: str | None,
    index: Path | None,
    codec: str | None,
    limit: int | None,
    candidates: int,
    on_error: str,
    runtime: str,
) -> list[StageScores]:
    """Metrics of every first stage on a BEIR folder; without an index its corpus is indexed for the run."""
    from decoupled.measure.retrieval import evaluate_retrieval, judged_queries

    judged_queries(data, limit)
    with tempfile.TemporaryDirectory() as scratch:
        path = index or Path(scratch) / "corpus.idx"
        if index is None:
            with building(path) as (skipped, bar):
                run = partial(dc.build_index, [str(data)], path, model=model, codec=codec)
                run = partial(run, runtime=runtime, on_error=opt.stop_or_skip(on_error))
                run(report=skipped, on_total=bar.expect, on_bytes=bar.read, progress=bar.added)
        with printing.progress_bar("queries") as bar:
            measure = partial(evaluate_retrieval, path, data, limit=limit, candidates=candidates)
            return measure(runtime=runtime, progress=bar.reach)
