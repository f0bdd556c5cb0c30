"""Every split of a model on judged data: what it keeps of the joint model, and what it saves.

A sweep is a file of JSON lines, one per split. It may be stopped at any time and goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from decoupled.errors import InputError
from decoupled.lab.study.judge import Said, agreement, say
from decoupled.lab.study.timing import Setup, timed
from decoupled.measure.flops import published_speedup, token_layers_saved, work
from decoupled.measure.storage import bytes_per_token
from decoupled.model.model import Model
from decoupled.train import checkpoint
from decoupled.train.data.examples import Examples
from decoupled.train.data.tasks import Task, to_judge
from decoupled.train.loop import Progress
from decoupled.train.recipe import Recipe
from decoupled.train.reshape import teacher_of
from decoupled.train.run import Data, Setting, train_model


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Training that each split gets before it is judged."""

    examples: Examples
    recipe: Recipe
    out: Path | None = None
    """Folder for checkpoints: a run that was stopped goes on."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is swept, and how it is measured."""

    model: Model
    task: Task
    examples: Examples
    codec: str = "int8"
    budget: Budget | None = None
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
    def said(self) -> Said:
        """What the joint model says."""
        return say(self.joint, self.task, self.examples)


# One split ----------------------------------------------------------------------------------------


def measure_split(plan: Plan, at: int, progress: Progress | None = None) -> dict[str, Any]:
    """The line of one split."""
    model = Model.split(plan.joint, at=at) if at else plan.joint
    trained = plan.budget is not None and at > 0
    if trained:
        model = _train(plan, model, progress)
    said = plan.said if at == 0 else say(model, plan.task, plan.examples)
    lengths = _lengths(plan.examples)
    line: dict[str, Any] = {
        **plan.about,
        "task": plan.task.name,
        "split": at,
        "layers": len(model.spec.layers),
        "trained": trained,
        "metric": plan.task.metric,
        "score": round(said.metrics[plan.task.metric], 4),
        "scores": {name: round(value, 4) for name, value in said.metrics.items()},
        "agreement": round(agreement(said, plan.said, plan.task, plan.examples), 4),
        "pairs": len(plan.examples),
        "tokens": lengths,
        "flops": _flops(plan, model, **lengths),
        "bytes": _bytes(plan, model, lengths["passage"]),
    }
    if plan.rounds:
        setup = Setup(
            examples=plan.examples,
            head=plan.task.head,
            codec=plan.codec,
            candidates=plan.candidates,
            rounds=plan.rounds,
        )
        line |= timed(setup, plan.joint, model)
    return line


def _train(plan: Plan, model: Model, progress: Progress | None) -> Model:
    budget = plan.budget
    assert budget is not None
    at = model.spec.split
    train, tune = budget.examples, None
    if budget.recipe.watch.evaluations:
        train, held = train.divide(seed=budget.recipe.seed)
        tune = to_judge(held, plan.task)
    made, _ = train_model(
        model,
        Data(task=plan.task, train=train, tune=tune),
        budget.recipe,
        teacher=plan.joint,
        setting=Setting(out=_run_folder(plan, at), progress=progress, clear=False),
    )
    return made


def _run_folder(plan: Plan, at: int) -> Path | None:
    """Where the training of a split keeps its checkpoint."""
    budget = plan.budget
    return budget.out / f"k{at}" if budget is not None and budget.out is not None else None


def _lengths(examples: Examples) -> dict[str, int]:
    """Median tokens of both sides."""
    query = examples.queries.lengths[examples.query_of]
    passage = examples.passages.lengths[examples.passage_of]
    return {"query": int(np.median(query)), "passage": int(np.median(passage))}


def _flops(plan: Plan, model: Model, *, query: int, passage: int) -> dict[str, Any]:
    lengths = {"query": query, "passage": passage}
    joint = work(plan.joint.spec, **lengths, heads=[plan.task.head])
    ours = work(model.spec, **lengths, heads=[plan.task.head])
    at = model.spec.split
    return {
        "joint": 2 * joint.whole(),
        "pair": 2 * ours.cross,
        "query": 2 * ours.query,
        "passage": 2 * ours.passage,
        "speedup": round(joint.whole() * plan.candidates / ours.online(plan.candidates), 3),
        "published_speedup": round(published_speedup(model.spec, at, **lengths), 3),
        "token_layers_saved": round(token_layers_saved(len(model.spec.layers), at, **lengths), 4),
    }


def _bytes(plan: Plan, model: Model, tokens: int) -> dict[str, Any]:
    if not model.spec.split:
        return {"codec": None, "passage": 0}
    each = bytes_per_token(plan.codec, model.spec.state_width("passage"))
    return {"codec": plan.codec, "passage": tokens * each}


# The file -----------------------------------------------------------------------------------------


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a sweep, or of a log; one that was cut off is left out."""
    if not path.exists():
        return []
    found = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found


def sweep(
    plan: Plan,
    splits: Sequence[int],
    out: Path,
    *,
    told: Callable[[dict[str, Any], bool], None] | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Measure the splits that the file lacks, one line each; returns all lines, in order of the splits.

    `told(line, fresh)` hears of each line, and whether it was measured now.
    """
    last = len(plan.model.spec.layers)
    if wrong := [k for k in splits if not 0 <= k <= last]:
        raise InputError(f"split {wrong[0]} is asked for, but the encoder has {last} layers")
    known = {line["split"]: line for line in _own_lines(plan, out)}
    _rewrite(out, list(known.values()))
    for at in splits:
        fresh = at not in known
        if fresh:
            known[at] = measure_split(plan, at, progress)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(known[at]) + "\n")
            if (folder := _run_folder(plan, at)) is not None:
                checkpoint.clear(folder)
        if told is not None:
            told(known[at], fresh)
    return [known[at] for at in sorted(known)]


def _own_lines(plan: Plan, out: Path) -> list[dict[str, Any]]:
    lines = read_lines(out)
    for line in lines:
        for name, value in plan.about.items():
            if name != "command" and line.get(name) != value:
                raise InputError(
                    f"{out} holds a sweep with {name}={line.get(name)!r}, and this one has "
                    f"{name}={value!r}; choose another file, or delete it"
                )
    return lines


def _rewrite(out: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Only whole lines: what a kill cut off goes before anything is appended."""
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f".{out.name}.draft")
    draft.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    draft.replace(out)
