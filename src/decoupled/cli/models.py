"""`split` and `info`: models on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoupled.cli import printing
from decoupled.errors import InputError

if TYPE_CHECKING:
    from decoupled.measure.agreement import Agreement
    from decoupled.model.model import Model
    from decoupled.model.spec import OneWay


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(split)
    app.command()(info)


def split(
    checkpoint: Annotated[
        str, typer.Argument(help="Hugging Face folder or hub name, or a model folder.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model folder to write.")],
    at: Annotated[
        str,
        typer.Option(
            help="Layer to split at: 0 is the joint model; `auto` chooses: with --data for a model that "
            "you will distil, with --check for one that you will use as it is."
        ),
    ],
    check: Annotated[
        str | None,
        typer.Option(
            help="Pairs to compare with the unsplit model on: jsonl, csv, SQuAD, BEIR folder."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Pairs from which `--at auto` reads what the layers do with both texts."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many queries of the check to use.")] = 200,
    positions: Annotated[
        str | None, typer.Option(help="Positions of a passage: restart, offset, or joint at 0.")
    ] = None,
    cross_embed: Annotated[
        str, typer.Option(help="New tables at the start of the cross component: none, add, add_ln.")
    ] = "none",
    one_way: Annotated[
        str | None,
        typer.Option(
            help="Layers where only the query advances: auto, or 4-6, or 4,5; then distill."
        ),
    ] = None,
    passage_tokens: Annotated[
        int | None, typer.Option(help="Longest window of a passage; longer texts get several.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens from one window of a long text to the next.")
    ] = None,
    keep: Annotated[
        float, typer.Option(min=0, max=1, help="Agreement that `--at auto --check` must keep.")
    ] = 0.9,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Split a pair encoder at a layer; the weights stay as they are."""
    from decoupled.cli.evaluate import need
    from decoupled.cli.runs import check_output
    from decoupled.runtime import cpu

    layer = None if at == "auto" else _layer(at)
    check_output(output)
    need(("torch", "torch"))
    cpu.protect()
    from decoupled.model.model import Model

    options: dict[str, Any] = {
        "positions": _one_of("--positions", positions, ("restart", "offset", "joint")),
        "cross_embed": _one_of("--cross-embed", cross_embed, ("none", "add", "add_ln")),
        "passage_tokens": passage_tokens,
        "stride": stride,
        "one_way": one_way_layers(one_way),
    }
    whole = Model.open(checkpoint)
    measured: list[Agreement] = []
    if layer is None and data:
        layer = _suggested(whole, data, limit)
    if layer is not None:
        model = Model.split(whole, at=layer, **options)
        measured = _measure(whole, [model], check, limit) if check else []
    elif check:
        if isinstance(options["one_way"], tuple) and options["one_way"]:
            raise InputError("--at auto tries every layer; with it write --one-way auto")
        # Where the last layer must advance, one-way layers need another one above the split.
        advance = options["one_way"] and any(head.reads_passages for head in whole.spec.heads)
        deepest = len(whole.spec.layers) - (2 if advance else 1)
        models = [Model.split(whole, at=k, **options) for k in range(1, deepest + 1)]
        measured = _measure(whole, models, check, limit)
        good = [a.split for a in measured if a.score >= keep]
        model = Model.split(whole, at=max(good, default=0), **options | _joint_at_0(good))
        printing.note(f"split at {model.spec.split}: the deepest that keeps {keep:.0%} agreement")
    else:
        model = Model.split(whole, at=len(whole.spec.layers) // 2, **options)
        printing.note(
            f"split at {model.spec.split}, half of the layers; --data DATA measures instead"
        )
    model.save(output)
    _report_split(model, output, measured, as_json)


def _suggested(whole: Model, data: str, limit: int) -> int:
    """Where the attention between both texts says to split, for a model that is distilled afterwards."""
    from decoupled.cli.lab import curves, judged
    from decoupled.lab.study.suggest import suggest

    _, _, made = judged(whole, [data], "pairs", limit, "stop")
    found = curves(whole, made, {}, passages=50, queries=5)
    suggestion = suggest(found.crossing_query, found.crossing_passage)
    left = suggestion.remaining[suggestion.split]
    printing.note(
        f"split at {suggestion.split}: the deepest that leaves {left:.0%} of the attention between both "
        "texts above it; distil it next"
    )
    return suggestion.split


def _joint_at_0(good: list[int]) -> dict[str, Any]:
    return {} if good else {"positions": None, "cross_embed": "none", "one_way": ()}


def _one_of(option: str, value: str | None, allowed: tuple[str, ...]) -> str | None:
    if value is not None and value not in allowed:
        raise InputError(f"{option} is {value!r}; choose one of {', '.join(allowed)}")
    return value


def one_way_layers(text: str | None) -> OneWay:
    """What `--one-way` says: `auto`, a range or a list of layers; nothing where it is not given."""
    if text is None or text == "auto":
        return "auto" if text else ()
    try:
        return tuple(layer_numbers(text))
    except ValueError:
        raise InputError(
            f"--one-way is {text!r}; write auto, or layers such as 4-6 or 4,5"
        ) from None


def layer_numbers(text: str) -> list[int]:
    """The numbers of `4-6` or `4,5`; a range that ends before it begins is a `ValueError` too."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = range(int(first), int(last if dash else first) + 1)
        if not numbers:
            raise ValueError(f"{part} names no layer")
        found += numbers
    return found


def _layer(at: str) -> int:
    try:
        return int(at)
    except ValueError:
        raise InputError(f"--at is {at!r}; give a layer number or auto") from None


def _measure(whole: Model, models: list[Model], data: str, limit: int) -> list[Agreement]:
    from decoupled.index.documents import read_pairs
    from decoupled.measure.agreement import Reference, cases
    from decoupled.model.model import Model
    from decoupled.search.engine import Engine

    if not whole.spec.heads:
        raise InputError("the checkpoint has no head, so there is nothing to compare; omit --check")
    head = whole.spec.heads[0].kind
    joint = Model.split(whole, at=0)
    reference = Reference(Engine(joint), cases(read_pairs(data), head, limit), head)
    return [reference.compare(Engine(model)) for model in models]


def _report_split(model: Model, output: Path, measured: list[Agreement], as_json: bool) -> None:
    spec = model.spec
    for agreement in measured:
        if agreement.split == spec.split and agreement.fell:
            printing.note(
                f"warning: at split {agreement.split} the {agreement.head} head agrees only "
                f"{agreement.score:.2f} with the unsplit model; train it with `decoupled distill`, or "
                "split lower"
            )
    if as_json:
        printing.document(
            {
                "model": str(output),
                "family": spec.family,
                "layers": len(spec.layers),
                "split": spec.split,
                "positions": spec.positions,
                "one_way": list(spec.one_way),
                "fingerprint": model.fingerprint,
                "check": [a.to_json() for a in measured],
            }
        )
        return
    if measured:
        rows = [(a.split, a.head, a.score, a.queries, "fell" if a.fell else "") for a in measured]
        printing.table(("split", "head", "agreement", "queries", ""), rows)
    printing.note(
        f"{output}: {spec.family}, {spec.split} of {len(spec.layers)} layers run on each text alone"
    )
    if spec.one_way:
        printing.note(
            f"one-way: layers {', '.join(map(str, spec.one_way))} move the query alone; "
            "train it with `decoupled distill`"
        )


def info(
    path: Annotated[Path, typer.Argument(help="A model folder or an index.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say what a model or an index holds."""
    from decoupled.index.index import Index
    from decoupled.index.manifest import is_index

    facts = Index.open(path).info() if is_index(path) else _model_facts(path)
    if as_json:
        printing.document(facts)
    else:
        printing.facts((name.replace("_", " "), value) for name, value in facts.items())


def exported(path: Path) -> list[str]:
    """What `export` has put into a model folder."""
    from decoupled.model.folder import EXPORTED

    return ["openvino int8"] if (path / EXPORTED).is_file() else []


def _model_facts(path: Path) -> dict[str, Any]:
    from decoupled.measure.parameters import held, weights_in
    from decoupled.model import folder

    spec = folder.read_spec(path)
    tensors = folder.read_tensors(path)
    sizes = {n: weights_in(n, int(t.size), str(t.dtype)) for n, t in tensors.items()}
    counted = held(sizes)
    tokenizer = folder.read_tokenizer(path, spec)
    return {
        "kind": "model",
        "family": spec.family,
        "layers": len(spec.layers),
        "split": spec.split,
        "one_way": list(spec.one_way),
        "width": spec.encoder.width,
        "positions": spec.positions,
        "cross_embed": spec.cross_embed,
        "heads": [head.kind for head in spec.heads],
        "query_tokens": spec.text.query_tokens,
        "passage_tokens": spec.text.passage_tokens,
        "parameters": counted.total,
        "embedding_parameters": counted.embedding,
        "layer_parameters": counted.layers,
        "head_parameters": counted.pooler + counted.outputs,
        "split_parameters": counted.split,
        "input_parameters": sum(size for name, size in sizes.items() if spec.is_input(name)),
        "exported": exported(path),
        "bytes": sum(f.stat().st_size for f in path.rglob("*") if f.is_file()),
        "fingerprint": folder.fingerprint(spec, tensors, tokenizer.json),
        "history": folder.read_history(path),
    }
