"""`shrink`: make a model smaller, and train it to stay as good."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoupled.cli import printing
from decoupled.cli.evaluate import check_task, labelled_pairs, need
from decoupled.cli.runs import (
    Job,
    changes_of,
    check_output,
    fitted_recipe,
    same_run,
    stopped,
    training_bar,
)
from decoupled.cli.train import (
    Batch,
    Epochs,
    Json,
    OnError,
    Rate,
    Seed,
    Sets,
    Source,
    TaskName,
)
from decoupled.errors import DecoupledError, InputError

if TYPE_CHECKING:
    from decoupled.index.documents import Pair
    from decoupled.model.model import Model
    from decoupled.train.shrink.base import Method

TOKENS = (16, 128)
"""Query and passage that the arithmetic is counted for."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(shrink)


@dataclass(frozen=True, kw_only=True)
class ShrinkJob(Job):
    """What the command is told; it decides whether an unfinished run is the same one."""

    methods: tuple[str, ...]
    teacher: None = None
    at: None = None
    projection: None = None


def list_methods(wanted: bool) -> None:
    """Print the methods with their options, and stop."""
    if not wanted:
        return
    need(("torch", "torch"), ("accelerate", "train"))
    from decoupled.train.shrink.names import METHODS

    rows = []
    for name, kind in METHODS.items():
        hints = typing.get_type_hints(kind)
        options = ", ".join(f"{f.name}={_shown(f.default, hints[f.name])}" for f in kind.options())
        rows.append((name, (kind.__doc__ or "").splitlines()[0], options))
    printing.table(("method", "what it does", "options, defaults first"), rows)
    raise typer.Exit()


def _shown(value: Any, kind: Any) -> str:
    """A default, and after it what else there is to choose."""
    if typing.get_origin(kind) is typing.Literal:
        return "|".join([str(value), *(str(one) for one in typing.get_args(kind) if one != value)])
    if isinstance(value, tuple):
        return "/".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


Methods = Annotated[
    list[str],
    typer.Option(
        "--method", "-m", help="NAME:key=value,key=value. Repeat it: they apply in that order."
    ),
]
Pairs = Annotated[
    list[str] | None, typer.Option(help="Labelled pairs that methods look at and training uses.")
]
Check = Annotated[
    list[str] | None, typer.Option(help="Labelled pairs to score the model on, before and after.")
]
Train = Annotated[
    str | None,
    typer.Option(help="Train afterwards: plain (labels), deformer or decoupled (also the model)."),
]
Evaluations = Annotated[
    int, typer.Option(min=0, help="Times that a tenth of the data judges the weights.")
]
Compact = Annotated[
    bool,
    typer.Option(
        "--compact",
        help="Save what stays in floating point with half the bits, the token table with a quarter.",
    ),
]
Listing = Annotated[
    bool,
    typer.Option(
        "--list", help="Show the methods and their options.", is_eager=True, callback=list_methods
    ),
]


def shrink(
    model: Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="Model folder to write.")],
    method: Methods,
    data: Pairs = None,
    task: TaskName = "pairs",
    check: Check = None,
    recipe: Train = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: Rate = None,
    seed: Seed = 0,
    evaluations: Evaluations = 4,
    settings: Sets = None,
    compact: Compact = False,
    on_error: OnError = "stop",
    as_json: Json = False,
    listing: Listing = False,
) -> None:
    """Make a model smaller: prune, share, factorise, quantise, replace. `--list` names the methods."""
    need(("torch", "torch"), ("accelerate", "train"))
    check_task(task)
    check_output(output)
    if recipe is None:
        _refuse_idle({"--epochs": epochs, "--batch": batch, "--lr": lr, "--set": settings})
    from decoupled.runtime import cpu

    cpu.protect()
    from decoupled.train.shrink.names import parse

    methods = [parse(text) for text in method]
    pairs = labelled_pairs(data, on_error) if data else None
    if recipe is not None and pairs is None:
        raise InputError(
            f"--recipe {recipe} trains, and training needs labelled pairs; give --data"
        )
    judged = labelled_pairs(check, on_error) if check else None
    from decoupled.model.model import Model

    whole, held = Model.open(model), _file_bytes(Path(model))
    if recipe is None:
        made = _apply(whole, methods, pairs, task, output, compact)
        _say_untrained(methods)
    else:
        sources = tuple(data or ())
        job = ShrinkJob(model=model, data=sources, task=task, recipe=recipe, methods=tuple(method))
        changes = changes_of(settings, epochs=epochs, batch=batch, lr=lr, seed=seed)
        made = _train(whole, methods, pairs or [], job, evaluations, changes, output, compact)
    sparse = any(one.name == "prune-weights" for one in methods)
    _report(whole, made, output, judged, task, as_json, sparse=sparse, held=held)


def _refuse_idle(options: dict[str, Any]) -> None:
    """Options of training do nothing where nothing is trained."""
    if idle := [name for name, value in options.items() if value]:
        raise InputError(
            f"{', '.join(idle)} is for training, and without --recipe nothing is trained; add --recipe "
            "plain, deformer or decoupled, or leave it out"
        )


def _apply(
    whole: Model,
    methods: list[Method],
    pairs: list[Pair] | None,
    task: str,
    output: Path,
    compact: bool,
) -> Model:
    from decoupled.train.shrink.shrink import shrink as make

    with training_bar() as bar:
        return make(
            whole,
            methods,
            data=pairs,
            task=task,
            out=output,
            compact=compact,
            progress=bar.told,
        )


def _train(
    whole: Model,
    methods: list[Method],
    pairs: list[Pair],
    job: ShrinkJob,
    evaluations: int,
    changes: dict[str, Any],
    output: Path,
    compact: bool,
) -> Model:
    from decoupled.train.shrink.shrink import shrink as make

    recipe = fitted_recipe(job.recipe, {"watch.evaluations": evaluations, **changes}, len(pairs))
    work = Path(f"{output}.run")
    same_run(work, job, recipe, "checkpoint*/checkpoint.json")
    printing.note(f"{len(pairs)} pairs; the log is {work / 'log.jsonl'}")
    with training_bar() as bar:
        try:
            return make(
                whole,
                methods,
                data=pairs,
                task=job.task,
                recipe=recipe,
                out=output,
                compact=compact,
                progress=bar.told,
            )
        except KeyboardInterrupt:
            raise DecoupledError(stopped(work, bar)) from None


def _say_untrained(methods: list[Method]) -> None:
    """Methods whose work is training did nothing, or left a model that needs it."""
    if acting := [method.name for method in methods if method.by_training]:
        printing.note(
            f"{', '.join(acting)}: the work of this happens while training; add --recipe plain --data D"
        )


def _report(
    whole: Model,
    made: Model,
    output: Path,
    judged: list[Pair] | None,
    task: str,
    as_json: bool,
    *,
    sparse: bool,
    held: int | None,
) -> None:
    from decoupled.train.shrink.count import pair_macs, parameters, weight_bytes
    from decoupled.train.shrink.weights import sparse_bytes

    def facts(model: Model, file_bytes: int | None) -> dict[str, Any]:
        macs = pair_macs(model.spec, *TOKENS)
        found: dict[str, Any] = {
            "parameters": parameters(model.spec),
            "weight_bytes": weight_bytes(model.spec),
            "file_bytes": file_bytes,
            "layers": len(model.spec.layers),
            "passage_macs": macs["passage"],
            "online_macs": macs["query"] + macs["cross"],
        }
        if sparse:
            # The folder holds zeros as they are; this is what a format for them would take.
            found["sparse_bytes"] = sparse_bytes(model.net.state_dict())
        if judged is not None:
            found["score"] = round(_score(model, judged, task), 4)
        return found

    if judged is not None:
        printing.note(f"scoring {len(judged)} pairs with both models")
    before, after = facts(whole, held), facts(made, _file_bytes(output))
    if as_json:
        printing.document(
            {"model": str(output), "before": before, "after": after, "tokens": TOKENS}
        )
        return
    rows = [
        (
            name.replace("_", " "),
            _number(before[name]),
            _number(after[name]),
            _ratio(before, after, name),
        )
        for name in before
    ]
    query, passage = TOKENS
    printing.table(
        ("", "before", "after", "ratio"),
        rows,
        title=f"one query of {query} and one passage of {passage} tokens",
    )
    printing.note(f"{output}: {after['parameters']:,} parameters in {after['file_bytes']:,} bytes")


def _score(model: Model, pairs: list[Pair], task: str) -> float:
    from decoupled.train.data.prepare import prepare
    from decoupled.train.shrink.measure import score_of

    return score_of(model, prepare(pairs, model, task, train=False))


def _file_bytes(path: Path) -> int | None:
    """Of the weights as a model folder holds them; a checkpoint of another kind has none."""
    from decoupled.model.folder import WEIGHTS

    file = path / WEIGHTS
    return file.stat().st_size if file.is_file() else None


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _ratio(before: dict[str, Any], after: dict[str, Any], name: str) -> str:
    return f"{after[name] / before[name]:.2f}" if before[name] else ""
