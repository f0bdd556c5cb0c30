"""`tune`: Bayesian search of the loss weights, the temperature and the rate, judged on the tune split.

Trials are kept by their settings, which lie on a grid, and written to a journal as they end, so a search goes
on where it was stopped and no settings are tried twice.
"""

import gc
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from decoupled.errors import InputError, MissingDependency
from decoupled.measure.pairs import Pair
from decoupled.measure.table import ResultTable
from decoupled.model.model import Model
from decoupled.train.data.prepare import prepare
from decoupled.train.loop.loop import Diverged
from decoupled.train.recipe import DEFORMER, Distillation, Recipe, override
from decoupled.train.reshape import teacher_of
from decoupled.train.run import Data, Setting, suited, train_model, with_head

FIELDS = {
    "kd": "weights.kd",
    "lrs": "weights.lrs",
    "task": "weights.task",
    "temperature": "temperature",
    "lr": "optimiser.lr",
}
"""What is searched, and which field of a recipe each is."""
WEIGHTS = tuple(round(0.1 * n, 1) for n in range(1, 21))
"""Of each loss (DeFormer's bounds and step)."""
TEMPERATURES = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
RATES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
"""Times the recipe's own."""

Settings = tuple[float, ...]
"""A value for each of `FIELDS`."""
NAMES = ("kd (α)", "lrs (β)", "task (γ)", "temperature", "lr")
"""The settings, as tables and pictures call them."""
START = (0.5, 0.2, 0.3)
"""DeFormer's own (α, β, γ) of KD, LRS and task, tried first; then come the recipe's own."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Settings, and the score that they reached on the tune split."""

    settings: Settings
    score: float

    def to_json(self) -> dict[str, float]:
        """Each setting by name, and the score rounded."""
        return {**dict(zip(FIELDS, self.settings, strict=True)), "score": round(self.score, 4)}


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
    """Search loss weights, temperature and rate that distil `model` best; all trials, best first.

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
        finally:
            gc.collect()  # what a trial kept of the teacher may fill half of a GPU
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
    path, axes, losses = Path(journal) if journal else None, axes_of(base), base.of(Distillation)
    own = (losses.weights.kd, losses.weights.lrs, losses.weights.task)
    rest = (losses.temperature, base.optimiser.lr)
    tried = {_nearest(axes, trial.settings): trial for trial in read_journal(path)}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.GPSampler(seed=base.seed, n_startup_trials=3)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    # Steps along the axes, not values, so that those of a rate are alike however small it is.
    steps = [optuna.distributions.IntDistribution(0, len(axis) - 1) for axis in axes]
    space: dict[str, Any] = dict(zip(FIELDS, steps, strict=True))
    for point, trial in tried.items():
        params = dict(zip(FIELDS, point, strict=True))
        finished = optuna.trial.create_trial(params=params, distributions=space, value=trial.score)
        study.add_trial(finished)
    for weights in (START, own):
        point = _nearest(axes, (*weights, *rest))
        if point not in tried:
            study.enqueue_trial(dict(zip(FIELDS, point, strict=True)))
    for _ in range(trials - len(tried)):
        proposal = study.ask(space)
        point = tuple(int(proposal.params[name]) for name in FIELDS)
        if point not in tried:
            settings = tuple(axis[step] for axis, step in zip(axes, point, strict=True))
            changed = override(base, dict(zip(FIELDS.values(), settings, strict=True)))
            tried[point] = Trial(settings=settings, score=train(changed))
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(vars(tried[point])) + "\n")
        study.tell(proposal, tried[point].score)
    return sorted(tried.values(), key=lambda trial: -trial.score)


def axes_of(base: Recipe) -> tuple[Settings, ...]:
    """The values of each setting that a search may try."""
    # To two digits, so that a journal, a table and a command line say the same.
    rates = tuple(float(f"{factor * base.optimiser.lr:.2g}") for factor in RATES)
    return WEIGHTS, WEIGHTS, WEIGHTS, TEMPERATURES, rates


def _nearest(axes: Sequence[Settings], settings: Settings) -> tuple[int, ...]:
    """The point of the grid that is nearest to these settings."""
    return tuple(
        min(range(len(axis)), key=lambda n: abs(axis[n] - value))
        for axis, value in zip(axes, settings, strict=True)
    )


def read_journal(path: Path | None) -> list[Trial]:
    """The trials of a journal, in order; none where there is no file."""
    if path is None or not path.exists():
        return []
    trials = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            settings = tuple(map(float, row["settings"]))
            if len(settings) != len(FIELDS):
                raise ValueError
            trials.append(Trial(settings=settings, score=float(row["score"])))
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{path}:{number} is {line!r:.60}; expected a trial with settings and score; "
                "remove the line"
            ) from None
    return trials


def trial_table(ranked: Sequence[Trial], earlier: int) -> ResultTable:
    """The best trials, of which so many were known before."""
    rows = [(round(trial.score, 4), *trial.settings) for trial in ranked[:10]]
    title = f"best of {len(ranked)} trials, {len(ranked) - earlier} of them new"
    return ResultTable(title=title, columns=("score", *NAMES), rows=rows)
