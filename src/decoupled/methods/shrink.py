"""`shrink`: methods applied in the written order, and training to win back what they lose."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from decoupled.errors import InputError
from decoupled.measure.pairs import Pair
from decoupled.methods.method import Method, apply
from decoupled.methods.names import parse
from decoupled.model.folder import is_model
from decoupled.model.model import Model
from decoupled.train.data.prepare import Prepared, prepare, to_judge
from decoupled.train.loop import checkpoint
from decoupled.train.loop.loop import Report
from decoupled.train.place import Progress
from decoupled.train.recipe import Recipe, override
from decoupled.train.run import Data, Setting, compares, keep, suited, train_model, with_head


def shrink(
    model: Model,
    methods: Sequence[str | Method],
    *,
    data: Iterable[Pair] | None = None,
    task: str = "pairs",
    recipe: Recipe | str | None = None,
    out: str | Path | None = None,
    compact: bool = False,
    progress: Progress | None = None,
) -> Model:
    """A smaller model: each method changes what the one before left, and the given model stays as it is.

    A method is `"prune-heads:share=0.4"` or a value of its class. Some look at data to decide: labelled pairs
    for a task. With a recipe the result is also trained on them, `model` being its teacher; methods that
    leave integer codes or zeros take effect when that is over. With `out` the model is saved there, the log
    of its training beside it in `out.run`, and an interrupted training goes on when it is called again;
    `compact` saves what is still in floating point with a quarter of the bits, norms and heads with half.
    `progress` gets what training logs, and before that how many pairs a method has looked at.
    """
    # A lone string is a sequence too, of letters.
    listed = [methods] if isinstance(methods, str) else methods
    chosen = [parse(one) if isinstance(one, str) else one for one in listed]
    sample = prepare(data, model, task) if data is not None else None
    if recipe is None:
        shrunk = _applied(model, chosen, sample, progress)
    else:
        if sample is None:
            raise InputError("a recipe trains, and training needs labelled pairs; give data")
        settled = suited(recipe) if isinstance(recipe, str) else recipe
        work = Path(f"{out}.run") if out is not None else None
        setting = Setting(out=work, progress=progress, clear=False)
        shrunk, _ = shrink_and_train(model, chosen, sample, settled, setting=setting)
    if out is None:
        return shrunk
    if recipe is None:
        shrunk.save(out, compact=compact)
    else:
        keep(shrunk, out, compact=compact)
    return Model.load(out).to(model.device) if compact else shrunk


def shrink_and_train(
    model: Model,
    methods: Sequence[Method],
    sample: Prepared,
    recipe: Recipe,
    *,
    tune: Prepared | None = None,
    teacher: Model | None = None,
    setting: Setting = Setting(),
) -> tuple[Model, list[Report]]:
    """Apply the methods, train with what they do meanwhile, apply those that finish; a report per phase.

    The teacher is by default the model as it was given. `tune` judges where the recipe evaluates; without it
    a tenth of the sample does.
    """
    first = [method for method in methods if not method.finishes]
    last = [method for method in methods if method.finishes]
    if [*first, *last] != list(methods):
        names = ", ".join(method.name for method in last)
        raise InputError(f"{names} takes effect after training, so it must be written last")
    whole = with_head(model, sample.task, recipe.seed)
    kind = sample.task.head
    resting = [method.name for method in methods if not method.trains(f"heads.{kind}.")]
    if whole is not model and resting:
        raise InputError(
            f"{resting[0]} leaves heads as they are, and this model has no {kind!r} head that has learned "
            "anything; train the model for the task first, or let heads move (frozen=false)"
        )
    student = _begun(whole, first, sample, setting)
    # What cannot be applied in the end should fail now, not after hours of training.
    _applied(student, last, sample, setting.progress)
    same_width = student.spec.encoder.width == whole.spec.encoder.width
    if student.spec.projection is not None and same_width:
        # It is learned already, and a first phase of its own would begin it anew.
        recipe = override(recipe, {"projection.phases": 1, "projection.start": "random"})
    guide = teacher or whole
    if student.tokenizer.json != guide.tokenizer.json and compares(recipe):
        raise InputError(
            "the vocabulary was changed, so the student and its teacher read different tokens; train with "
            "the recipe 'plain', or change the vocabulary after distilling"
        )
    data, hooked = _data(student, sample, tune, recipe), replace(setting, hooks=tuple(methods))
    trained, reports = train_model(student, data, recipe, teacher=guide, setting=hooked)
    return _applied(trained, last, sample, setting.progress), reports


def _begun(whole: Model, methods: Sequence[Method], sample: Prepared, setting: Setting) -> Model:
    """The model with the methods applied; a training that goes on reuses what they decided at its start.

    Looking at the data again would take as long as before, and might decide otherwise.
    """
    looking = any(type(method).fit is not Method.fit for method in methods)
    place = setting.out / checkpoint.STUDENT if setting.out is not None and looking else None
    if place is not None and checkpoint.exists(place.parent) and is_model(place):
        saved = Model.load(place)
        expected = [*whole.history, *({"did": "shrink", **method.summary()} for method in methods)]
        if _without_decisions(saved.history) == _without_decisions(expected):
            return saved.to(whole.device)
    smaller = _applied(whole, methods, sample, setting.progress)
    if place is not None:
        smaller.save(place)
    return smaller


def _without_decisions(history: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps([row for row in history if row["did"] != "shrink with"])


def _applied(
    model: Model, methods: Sequence[Method], sample: Prepared | None, progress: Progress | None
) -> Model:
    """The methods one after another; each tells how much of the sample it has looked at."""
    for method in methods:
        counted = None if progress is None else _reading(method.name, progress)
        model = apply(model, method, sample and replace(sample, progress=counted))
    return model


def _reading(name: str, progress: Progress) -> Callable[[int], None]:
    """Counts pairs into lines such as training logs; nobody knows yet how many there will be."""
    started, seen = time.perf_counter(), 0

    def count(groups: int) -> None:
        nonlocal seen
        seen += groups
        seconds = round(time.perf_counter() - started, 3)
        progress({"phase": name, "step": seen, "total": None, "seconds": seconds})

    return count


def _data(student: Model, sample: Prepared, tune: Prepared | None, recipe: Recipe) -> Data:
    train = sample.examples(student)
    judge = tune.examples(student) if tune is not None else None
    if judge is None and recipe.watch.evaluations:
        train, judge = train.divide(seed=recipe.seed)
    if judge is not None:
        judge = to_judge(judge, sample.task)
    return Data(task=sample.task, train=train, tune=judge)
