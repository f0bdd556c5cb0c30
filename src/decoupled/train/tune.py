"""`tune`: Bayesian search of the loss weights: a Gaussian process over (α, β, γ), judged on the tune split.

Trials are cached by the rounded triple and written to a journal as they end, so a search goes on where it was
stopped and a repeated triple is free.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from decoupled.errors import InputError, MissingDependency
from decoupled.index.documents import Pair
from decoupled.measure.table import Table
from decoupled.model.model import Model
from decoupled.train.data.prepare import prepare
from decoupled.train.loop import Diverged
from decoupled.train.recipe import DEFORMER, Recipe
from decoupled.train.reshape import teacher_of
from decoupled.train.run import Data, Setting, suited, train_model, with_head

LOW, HIGH = 0.1, 2.0
"""Bounds of each weight (DeFormer)."""

Triple = tuple[float, float, float]
NAMES = ("kd", "lrs", "task")
SHOWN = 10
"""Trials in a table."""
START: Triple = (0.5, 0.2, 0.3)
"""DeFormer's own (α, β, γ) of KD, LRS and task, probed first."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Weights (α, β, γ), and the score that they reached on the tune split."""

    weights: Triple
    score: float

    def to_json(self) -> dict[str, float]:
        """Each weight by name, and the score rounded."""
        return {**dict(zip(NAMES, self.weights, strict=True)), "score": round(self.score, 4)}


def tune(
    model: Model,
    *,
    data: Iterable[Pair],
    task: str = "pairs",
    teacher: Model | None = None,
    recipe: Recipe | str = "distill",
    trials: int = 50,
    journal: str | Path | None = None,
    progress: Callable[[int, dict[str, Any]], None] | None = None,
) -> list[Trial]:
    """Search the weights of KD, LRS and task that distil `model` best; all trials, best first.

    A tenth of the data judges: the same tenth for every trial; one that diverges scores 0. With a journal the
    search goes on where it was stopped, and `trials` is the number in all. `progress(trial, line)` gets
    what training logs, and in which trial.
    """
    chosen = suited(recipe) if isinstance(recipe, str) else recipe
    watch = replace(chosen.watch, evaluations=chosen.watch.evaluations or 1)
    base = replace(chosen, watch=watch)
    ready = prepare(data, model, task)
    train, judge = ready.divided(model, base.seed)
    dataset = Data(task=ready.task, train=train, tune=judge)
    start, guide = with_head(model, ready.task, base.seed), teacher or teacher_of(model)
    path = Path(journal) if journal else None
    done = len(read_journal(path))

    def run(weighted: Recipe) -> float:
        nonlocal done
        done += 1
        setting = Setting(progress=partial(progress, done) if progress is not None else None)
        try:
            _, reports = train_model(start, dataset, weighted, teacher=guide, setting=setting)
        except Diverged:
            return 0.0
        return reports[-1].best or 0.0

    return search(run, trials=trials, base=base, journal=path)


def search(
    train: Callable[[Recipe], float],
    *,
    trials: int = 50,
    base: Recipe = DEFORMER,
    journal: str | Path | None = None,
) -> list[Trial]:
    """All trials, best first. `train` trains with a recipe and returns the score on the tune split.

    With a journal, trials of an earlier search count and are not repeated; `trials` is the number in all.
    """
    if trials < 1:
        raise InputError(f"trials={trials}; choose at least 1")
    try:
        import optuna
    except ImportError:
        raise MissingDependency("optuna", "train") from None
    path = Path(journal) if journal else None
    known = {trial.weights: trial for trial in read_journal(path)}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.GPSampler(seed=base.seed, n_startup_trials=3),
    )
    space: dict[str, Any] = {
        name: optuna.distributions.FloatDistribution(LOW, HIGH, step=0.1) for name in NAMES
    }
    for trial in known.values():
        params = dict(zip(NAMES, trial.weights, strict=True))
        made = optuna.trial.create_trial(params=params, distributions=space, value=trial.score)
        study.add_trial(made)
    if START not in known:
        study.enqueue_trial(dict(zip(NAMES, START, strict=True)))
    for _ in range(trials - len(known)):
        asked = study.ask(space)
        triple = rounded(tuple(asked.params[name] for name in NAMES))
        if triple not in known:
            weights = replace(base.weights, **dict(zip(NAMES, triple, strict=True)))
            score = train(replace(base, weights=weights))
            known[triple] = Trial(weights=triple, score=score)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"weights": triple, "score": score}) + "\n")
        study.tell(asked, known[triple].score)
    return sorted(known.values(), key=lambda trial: -trial.score)


def rounded(weights: Iterable[float]) -> Triple:
    """Weights to one decimal, within the bounds."""
    a, b, c = (round(min(max(value, LOW), HIGH), 1) for value in weights)
    return a, b, c


def read_journal(path: Path | None) -> list[Trial]:
    """The trials of a journal, in order; none where there is no file."""
    if path is None or not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            found.append(Trial(weights=rounded(row["weights"]), score=float(row["score"])))
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{path}:{number} is {line!r:.60}; expected a trial with weights and score; "
                "remove the line"
            ) from None
    return found


def trial_table(ranked: Sequence[Trial], known: int) -> Table:
    """The best trials, of which so many were known before."""
    rows = [(round(trial.score, 4), *trial.weights) for trial in ranked[:SHOWN]]
    title = f"best of {len(ranked)} trials, {len(ranked) - known} of them new"
    return Table(title=title, columns=("score", "kd (α)", "lrs (β)", "task (γ)"), rows=rows)


def plot(trials: list[Trial], path: str | Path) -> None:
    """Score against each weight, best trial marked, as a picture file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("matplotlib", "plots") from None
    best = max(trials, key=lambda trial: trial.score)
    figure = Figure(figsize=(9, 3), layout="constrained")
    for number, name in enumerate(("α (KD)", "β (LRS)", "γ (task)")):
        axes = figure.add_subplot(1, 3, number + 1)
        axes.scatter([t.weights[number] for t in trials], [t.score for t in trials], s=12)
        axes.scatter([best.weights[number]], [best.score], s=40, marker="*", color="tab:red")
        axes.set_xlabel(name)
        axes.set_xlim(0, HIGH + 0.1)
    figure.axes[0].set_ylabel("score on the tune split")
    figure.savefig(path, dpi=150)
