"""`sweep` and `layers`: where to split a model, by a user's own judged pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from decoupled.index.documents import Pair
from decoupled.lab.bench.report import commit
from decoupled.lab.study.layers import layer_curves
from decoupled.lab.study.sweep import Sweep, Training, run_sweep
from decoupled.model.codec import parse_codec
from decoupled.model.model import Model
from decoupled.model.progress import Progress
from decoupled.train.data.prepare import prepare
from decoupled.train.place import Progress as TrainingProgress
from decoupled.train.recipe import Recipe
from decoupled.train.run import suited
from decoupled.train.suggest import judging, suggest


def sweep(  # noqa: PLR0913 (the options of a sweep)
    model: Model,
    *,
    data: Iterable[Pair],
    out: str | Path,
    task: str = "pairs",
    limit: int = 500,
    splits: Sequence[int] | None = None,
    train: Iterable[Pair] | None = None,
    recipe: Recipe | str = "distill",
    codec: str = "int8",
    candidates: int = 20,
    rounds: int = 5,
    about: Mapping[str, Any] | None = None,
    on_split: Callable[[dict[str, Any], bool], None] | None = None,
    progress: TrainingProgress | None = None,
) -> list[dict[str, Any]]:
    """Score, agreement, FLOPs, latency and bytes of every split: the lines of the file `out`, which goes on.

    The first `limit` queries judge. With `train` every split is distilled on those pairs first. `about` says
    what the model and the data are called; a file with other words is refused. `on_split(line, fresh)` hears
    of each line, and whether it was measured now; `progress` of what training logs.
    """
    parse_codec(codec)
    ready = judging(model, data, task, limit)
    examples, training = ready.examples(model), None
    if train is not None:
        training = Training(
            examples=prepare(train, model, task).examples(model),
            recipe=suited(recipe) if isinstance(recipe, str) else recipe,
            out=Path(f"{out}.run"),
        )
    timed = min(candidates, len(examples.passages))
    names = about or {}
    # What makes a sweep the same one: a file with other values is not gone on with.
    identity = {
        "kind": "sweep",
        "model": names.get("model"),
        "fingerprint": Model.split(model, at=len(model.spec.layers)).fingerprint[:16],
        "task": ready.task.name,
        "data": names.get("data"),
        "limit": limit,
        "codec": codec,
        "candidates": timed,
        "rounds": rounds,
        "training": training and {"data": names.get("train"), **training.settings()},
        "command": names.get("command"),
    }
    swept = Sweep(
        model=model,
        task=ready.task,
        examples=examples,
        codec=codec,
        training=training,
        candidates=timed,
        rounds=rounds,
        about=identity,
    )
    # The joint model is what all others are compared with.
    chosen = range(len(model.spec.layers) + 1) if splits is None else sorted({*splits, 0})
    return run_sweep(swept, chosen, Path(out), on_split=on_split, progress=progress)


def layers(
    model: Model,
    *,
    data: Iterable[Pair],
    task: str = "pairs",
    others: Mapping[str, Model] | None = None,
    passages: int = 100,
    queries: int = 5,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """How each layer uses the other text, how far splits depart from the joint model, and where to split.

    `passages` are each read beside `queries` queries; `others` are models to compare, by name.
    """
    ready = judging(model, data, task, None)
    curves = layer_curves(
        model,
        ready.examples(model),
        others=others,
        passages=passages,
        queries=queries,
        progress=progress,
    )
    suggestion = suggest(curves.crossing_query, curves.crossing_passage)
    facts = {"kind": "layers", "commit": commit(), "task": ready.task.name, **curves.to_json()}
    return {**facts, "suggestion": suggestion.to_json()}
