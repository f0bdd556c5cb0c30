"""Every split of a model on judged data: what it keeps of the joint model, and what it saves.

A sweep is a file of JSON lines, one per split. It may be stopped at any time and goes on where it was.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from decoupled.errors import InputError
from decoupled.lab.bench.report import commit
from decoupled.lab.study.layers import judging
from decoupled.lab.study.published import published_speedup, token_layers_saved
from decoupled.lab.study.timing import timed
from decoupled.measure.counts import work
from decoupled.measure.metrics import answer_f1, kendall
from decoupled.measure.pairs import Pair
from decoupled.measure.table import ResultTable
from decoupled.model.codec import bytes_per_token, parse_codec
from decoupled.model.jsonable import to_json
from decoupled.model.model import Model
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import prepare, to_judge
from decoupled.train.data.tasks import Task
from decoupled.train.evaluate import (
    Floats,
    How,
    PredictedSpans,
    answers,
    judged_answers,
    judged_pairs,
    pair_logits,
)
from decoupled.train.loop import checkpoint
from decoupled.train.loop.checkpoint import read_lines
from decoupled.train.place import Progress
from decoupled.train.recipe import Recipe
from decoupled.train.reshape import teacher_of
from decoupled.train.run import Data, Setting, suited, train_model

TRAINED_AS = ("name", "optimiser", "weights", "temperature", "seed")


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
    progress: Progress | None = None,
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


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a model says about the examples."""

    metrics: dict[str, float]
    spans: PredictedSpans | None = None
    logits: Floats | None = None

    def constant(self, task: Task) -> bool:
        """Is the same said of every example? Then its agreement with others says nothing."""
        if self.spans is not None:
            return len(self.spans.texts) > 1 and len(set(self.spans.texts)) == 1
        assert self.logits is not None
        if task.head == "classes":
            return len(self.logits) > 1 and len(set(self.logits.argmax(1).tolist())) == 1
        return self.logits.size > 1 and not np.ptp(self.logits)


def predict(model: Model, task: Task, examples: Examples) -> Predictions:
    """One pass over the examples: metrics, and what agreement is computed from."""
    if task.head == "span":
        spans = answers(model.net, examples, task, How())
        metrics = judged_answers(spans, examples, task.threshold).metrics
        return Predictions(metrics=metrics, spans=spans)
    logits = pair_logits(model.net, examples, task, How())
    metrics = judged_pairs(logits, examples, task).metrics
    if task.head == "choice":
        logits = logits[:, 0].reshape(-1, examples.per_group)
    return Predictions(metrics=metrics, logits=logits)


def agreement(one: Predictions, other: Predictions, task: Task, examples: Examples) -> float:
    """F1 between both answers, mean Kendall's tau of both orders, or the share of equal labels."""
    if one.spans is not None and other.spans is not None:
        both = zip(one.spans.texts, other.spans.texts, strict=True)
        return float(np.mean([answer_f1(a, b) for a, b in both]))
    assert one.logits is not None and other.logits is not None
    if task.head == "rank":
        groups = [examples.question == number for number in np.unique(examples.question)]
        taus = [kendall(one.logits[g, 0], other.logits[g, 0]) for g in groups if g.sum() > 1]
        return float(np.mean(taus)) if taus else 1.0
    return float((one.logits.argmax(1) == other.logits.argmax(1)).mean())


# What is swept ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Training:
    """Training that each split gets before it is judged."""

    examples: Examples
    recipe: Recipe
    out: Path | None = None
    """Folder for checkpoints: a run that was stopped goes on."""

    def settings(self) -> dict[str, Any]:
        """The fields of the recipe that the lines of a sweep tell."""
        recipe = to_json(self.recipe)
        flat = {**recipe, **recipe["settings"]}
        return {name: flat[name] for name in TRAINED_AS}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is swept, and how it is measured."""

    model: Model
    task: Task
    examples: Examples
    codec: str = "int8"
    training: Training | None = None
    candidates: int = 20
    """Passages that a query is timed against."""
    rounds: int = 5
    """Rounds of timing; 0 times nothing."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What every line carries, such as the names of model and data; another sweep has other values."""

    @cached_property
    def joint(self) -> Model:
        """The model unsplit: what every split is compared with, and its teacher."""
        self.model.spec.head(self.task.head)
        return teacher_of(self.model)

    @cached_property
    def predicted(self) -> Predictions:
        """What the joint model says."""
        return predict(self.joint, self.task, self.examples)


# One split ----------------------------------------------------------------------------------------


def measure_split(swept: Sweep, at: int, progress: Progress | None = None) -> dict[str, Any]:
    """The line of one split."""
    trained = swept.training is not None and at > 0
    if at and at == swept.model.spec.split and not trained:
        model = swept.model  # with what it learnt for this split, such as a projection
    else:
        model = Model.split(swept.joint, at=at) if at else swept.joint
    if trained:
        model = _train(swept, model, progress)
    predicted = swept.predicted if at == 0 else predict(model, swept.task, swept.examples)
    lengths = _lengths(swept.examples)
    line: dict[str, Any] = {
        **swept.about,
        "commit": commit(),
        "task": swept.task.name,
        "split": at,
        "layers": len(model.spec.layers),
        "trained": trained,
        "metric": swept.task.metric,
        "score": round(predicted.metrics[swept.task.metric], 4),
        "scores": {name: round(value, 4) for name, value in predicted.metrics.items()},
        "agreement": round(agreement(predicted, swept.predicted, swept.task, swept.examples), 4),
        "pairs": len(swept.examples),
        "tokens": lengths,
        "flops": _flops(swept, model, **lengths),
        "bytes": _bytes(swept, model, lengths["passage"]),
    }
    if predicted.constant(swept.task):
        line["constant"] = True
    if swept.rounds:
        line |= timed(
            swept.joint,
            model,
            swept.examples,
            head=swept.task.head,
            codec=swept.codec,
            candidates=swept.candidates,
            rounds=swept.rounds,
        )
    return line


def _train(swept: Sweep, model: Model, progress: Progress | None) -> Model:
    """Distil a split from the joint model; a part is held out if the recipe evaluates while it trains."""
    training = swept.training
    assert training is not None
    at = model.spec.split
    train, tune = training.examples, None
    if training.recipe.watch.evaluations:
        train, held = train.divide(seed=training.recipe.seed)
        tune = to_judge(held, swept.task)
    trained, _ = train_model(
        model,
        Data(task=swept.task, train=train, tune=tune),
        training.recipe,
        teacher=swept.joint,
        setting=Setting(out=_run_folder(swept, at), progress=progress, clear=False),
    )
    return trained


def _run_folder(swept: Sweep, at: int) -> Path | None:
    """Where the training of a split keeps its checkpoint."""
    out = swept.training and swept.training.out
    return out / f"k{at}" if out else None


def _lengths(examples: Examples) -> dict[str, int]:
    """Median tokens of both sides."""
    query = examples.queries.lengths[examples.query_of]
    passage = examples.passages.lengths[examples.passage_of]
    return {"query": int(np.median(query)), "passage": int(np.median(passage))}


def _flops(swept: Sweep, model: Model, **lengths: int) -> dict[str, Any]:
    joint = work(swept.joint.spec, **lengths, heads=[swept.task.head])
    ours = work(model.spec, **lengths, heads=[swept.task.head])
    at = model.spec.split
    return {
        "joint": 2 * joint.whole(),
        "pair": 2 * ours.cross,
        "query": 2 * ours.query,
        "passage": 2 * ours.passage,
        "speedup": round(joint.whole() * swept.candidates / ours.online(swept.candidates), 3),
        "published_speedup": round(published_speedup(model.spec, at, **lengths), 3),
        "token_layers_saved": round(token_layers_saved(len(model.spec.layers), at, **lengths), 4),
    }


def _bytes(swept: Sweep, model: Model, tokens: int) -> dict[str, Any]:
    if not model.spec.split:
        return {"codec": None, "passage": 0}
    each = bytes_per_token(swept.codec, model.spec.state_width("passage"))
    return {"codec": swept.codec, "passage": tokens * each}


# The file -----------------------------------------------------------------------------------------


def run_sweep(
    swept: Sweep,
    splits: Sequence[int],
    out: Path,
    *,
    on_split: Callable[[dict[str, Any], bool], None] | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Measure the splits that the file lacks, one line each; returns all lines, in order of the splits.

    `on_split(line, fresh)` hears of each line, and whether it was measured now.
    """
    last = len(swept.model.spec.layers)
    if wrong := [k for k in splits if not 0 <= k <= last]:
        raise InputError(f"split {wrong[0]} is asked for, but the encoder has {last} layers")
    measured = {line["split"]: line for line in _own_lines(swept, out)}
    out.parent.mkdir(parents=True, exist_ok=True)
    for at in splits:
        fresh = at not in measured
        if fresh:
            measured[at] = measure_split(swept, at, progress)
            # The whole file in one step: what a kill cut off goes, and nothing is cut off.
            draft = out.with_name(f".{out.name}.draft")
            draft.write_text(
                "".join(json.dumps(line) + "\n" for line in measured.values()), "utf-8"
            )
            draft.replace(out)
            if (folder := _run_folder(swept, at)) is not None:
                checkpoint.clear(folder)
        if on_split is not None:
            on_split(measured[at], fresh)
    return [measured[at] for at in sorted(measured)]


def _own_lines(swept: Sweep, out: Path) -> list[dict[str, Any]]:
    lines = read_lines(out)
    for line in lines:
        for name, value in swept.about.items():
            if name != "command" and line.get(name) != value:
                raise InputError(
                    f"{out} holds a sweep with {name}={line.get(name)!r}, and this one has "
                    f"{name}={value!r}; choose another file, or delete it"
                )
    return lines


def sweep_table(lines: Sequence[dict[str, Any]]) -> ResultTable:
    """The lines of a sweep, for people."""
    metric = lines[0]["metric"]
    columns = ("split", metric, "agreement", "FLOPs", "joint ms", "split ms", "bytes a passage")
    rows = []
    for line in lines:
        clock = {n: f"{v['median']:.1f}" for n, v in line.get("latency_ms", {}).items()}
        times = (clock.get("joint", ""), clock.get("split", ""))
        scores = (f"{line['score']:.2f}", f"{line['agreement']:.3f}")
        saved = f"÷ {line['flops']['speedup']:.2f}"
        rows.append((line["split"], *scores, saved, *times, f"{line['bytes']['passage']:,}"))
    timed = [line["candidates"] for line in lines if "latency_ms" in line]
    title = f"milliseconds of a query and {timed[0]} passages together" if timed else ""
    return ResultTable(title=title, columns=columns, rows=rows)


def stopped_line(output: Path, layers: int, splits: Sequence[int] | None) -> str:
    """A line that says how far a stopped sweep came."""
    count = layers + 1 if splits is None else len({*splits, 0})
    measured = f"{len(read_lines(output))} of {count} splits"
    return f"stopped with {measured} in {output}; run the same command to go on"


def constant_warning(lines: Sequence[dict[str, Any]]) -> list[str]:
    """A warning where the joint model says the same of all pairs, which makes agreement worthless."""
    if not (lines and lines[0].get("constant")):
        return []
    return [
        f"warning: the joint model says the same of all {lines[0]['pairs']} pairs, so every split agrees "
        "with it; train it first, or judge by other pairs"
    ]
