"""`distill`: a model and pairs in, a better model out."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelerate import PartialState

from decoupled.errors import InputError
from decoupled.measure.pairs import Pair
from decoupled.model import annex
from decoupled.model.jsonable import to_json
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.spec import OneWay
from decoupled.train.data.batches import Batches
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import prepare
from decoupled.train.data.tasks import Task, head_of
from decoupled.train.evaluate import How, evaluate_examples
from decoupled.train.loop import checkpoint
from decoupled.train.loop.loop import Hook, Phase, Report, accelerator_for, fit, suited_to_machine
from decoupled.train.objectives.base import objective_named
from decoupled.train.objectives.codec import codec_phase, start_projection
from decoupled.train.place import Progress
from decoupled.train.recipe import Distillation, Recipe, override, recipe_named
from decoupled.train.reshape import SCRATCH, reshaped, teacher_of, with_bits, with_tables

ELSEWHERE = {"adapt": ("the texts of an index", "adapt")}
ELSEWHERE |= {
    name: ("texts", "pretrain")
    for name, module in annex.OBJECTIVES.items()
    if module.startswith("pretrain")
}
"""Objectives that other functions train: what each learns from, and the name of the function."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Examples to train on, and optionally some to judge by."""

    task: Task
    train: Examples
    tune: Examples | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where a run happens, who is told about it, and which hooks are active."""

    out: Path | None = None
    """Folder of the log and the checkpoint; a run that finds a checkpoint there goes on from it."""
    device: str | None = None
    """The device; None is whatever `accelerate` finds, "cpu" leaves a GPU alone."""
    progress: Progress | None = None
    hooks: Sequence[Hook] = ()
    clear: bool = True
    """Whether to delete the checkpoint at the end; a caller that saves the model deletes it afterwards."""


def distill(  # noqa: PLR0913 (the options of the command)
    model: Model,
    *,
    data: Iterable[Pair],
    task: str = "pairs",
    teacher: Model | None = None,
    spec: str | Path | None = None,
    recipe: Recipe | str = "distill",
    at: int | None = None,
    projection: int | None = None,
    one_way: OneWay = (),
    evaluations: int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Model:
    """Win back what the split loses: train `model` to say what the teacher says on these pairs.

    The teacher is by default the same weights unsplit, so `model` must have been split from a fine-tuned one.
    The recipe `plain` needs none: it learns from the labels alone. A head that the task needs and the model
    lacks is added.
    By the `spec` in a file a new encoder begins at random instead, and `model` teaches it.
    `at` splits it first; `one_way` layers and a `projection` of that width are added before it is trained.
    With `evaluations` a tenth of the data is set aside, the model is judged on it so often, and the best
    weights are kept; otherwise as often as the recipe says, which by its name is never. With `out` the model
    is saved there, its log beside it in `out.run`, and an interrupted run goes on when it is called again. A
    recipe that is named is run as suits the machine (fp32 on a CPU, a checkpoint now and then), one that is
    given as it stands.
    """
    chosen = suited(recipe) if isinstance(recipe, str) else recipe
    _check_objective(chosen)
    if spec is not None:
        teacher, model = teacher or model, annex.load(SCRATCH).described(model, spec, chosen.seed)
    student = reshaped(model, at=at, one_way=one_way, projection=projection)
    if evaluations is not None:
        chosen = override(chosen, {"watch.evaluations": evaluations})
    if teacher is None and _needs_teacher(chosen):
        teacher = teacher_of(student)
    ready = prepare(data, student, task)
    train, judge = ready.examples(student), None
    if chosen.watch.evaluations:
        train, judge = ready.divided(student, chosen.seed)
    work = checkpoint.work_folder(out) if out else None
    trained, _ = train_model(
        with_head(student, ready.task, chosen.seed),
        Data(task=ready.task, train=train, tune=judge),
        chosen,
        teacher=teacher,
        setting=Setting(out=work, progress=progress, clear=False),
    )
    if out:
        keep(trained, out)
    return trained


def _needs_teacher(recipe: Recipe) -> bool:
    """Whether a recipe needs a teacher when none is named; `plain` compares with the scores of the data."""
    weights = recipe.of(Distillation).weights
    return bool(weights.kd or weights.inner or (weights.margin and recipe.name != "plain"))


def compares(recipe: Recipe) -> bool:
    """Whether the objective of a recipe compares a student with a teacher."""
    return recipe.of(Distillation).weights.guided


def keep(trained: Model, out: str | Path, *, compact: bool = False) -> None:
    """Save a trained model and delete its checkpoint, in one process while any others wait."""
    state = PartialState()
    if state.is_main_process:
        # In this order: a crash between the two leaves a checkpoint to go on from.
        trained.save(out, compact=compact)
        checkpoint.clear(checkpoint.work_folder(out))
    state.wait_for_everyone()


def recipe(
    name: str = "distill", changes: Mapping[str, Any] | None = None, *, pairs: int = 0
) -> Recipe:
    """A named recipe as suits this machine and so many pairs, with `changes` by dotted field name."""
    named, changes = recipe_named(name), changes or {}
    sizes = override(named, changes).optimiser
    steps = int(pairs * sizes.epochs / sizes.batch)
    return suited_to_machine(
        named, {}, {"watch.log_every": min(50, max(1, steps // 100)), **changes}
    )


def suited(name: str) -> Recipe:
    """The recipe of that name as suits this machine."""
    return suited_to_machine(recipe_named(name), {}, None)


def with_head(model: Model, task: Task, seed: int = 0) -> Model:
    """The model with the head that a task reads, added where it lacks one."""
    if head_of(task, model.spec) is not None:
        return model
    return model.with_heads(task.head_spec, seed=seed)


def train_model(
    model: Model,
    data: Data,
    recipe: Recipe,
    *,
    teacher: Model | None = None,
    setting: Setting = Setting(),
) -> tuple[Model, list[Report]]:
    """A trained copy of the model, and a report per phase. All that learns from pairs ends here."""
    _check_objective(recipe)
    if len(data.train) == 0:
        raise InputError("there is nothing to train on: no examples are left")
    accelerator = accelerator_for(recipe, setting.device)
    done = {"task": data.task.name, "recipe": to_json(recipe), "pairs": len(data.train)}
    settings = recipe.of(Distillation)
    how, begins = settings.projection, _begins_projection(model)
    model = with_tables(model, settings.tables)
    own = with_bits(model.spec, how.bits)
    student = model.rebuild(own, {"did": "train", **done}).to(accelerator.device)
    batches = Batches.of(data.train, model.spec, accelerator.device)
    work = setting.out
    # A copy, since the caller's teacher stays where and as it is.
    copied = teacher.rebuild(teacher.spec, {"did": "teach"}) if teacher else None
    guide = copied.to(batches.device).net.requires_grad_(False) if copied else None
    phases = _phases(student, data, recipe, guide, batches, begins)
    names = [phase.name for phase in phases]
    saved = checkpoint.load(work) if work is not None else None
    skip = names.index(saved[1]["phase"]) if saved and saved[1]["phase"] in names else 0
    if begins and saved is None and how.start == "pca":
        start_projection(student.net, batches, data.task, recipe.seed)
    of = made_of(student, data.train.digest(), recipe) if work is not None else {}
    reports = []
    for phase in phases[skip:]:
        phase = replace(phase, folder=work, progress=setting.progress, of=of)
        if phase.name == "train":
            judge = _judge(student, data, recipe)
            phase = replace(phase, evaluate=judge, hooks=setting.hooks)
        reports.append(fit(phase, accelerator))
    if work is not None and setting.clear:
        # Not before the process that writes it is done with the last one.
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            checkpoint.clear(work)
    return student, reports


def _check_objective(recipe: Recipe) -> None:
    """Raise `InputError` for an objective that another function trains."""
    if recipe.objective == "exits":
        raise InputError(
            "exits are learnt with a reader: run `python examples/starter/train.py reader` in a checkout"
        )
    if (other := ELSEWHERE.get(recipe.objective)) is not None:
        raise InputError(
            f"the recipe {recipe.objective!r} learns from {other[0]}, not from the pairs of one task; use "
            f"`{other[1]}`"
        )


def _begins_projection(model: Model) -> bool:
    """Whether its projection is still to be learned; one that was trained goes on as it is."""
    did = [str(one.get("did")) for one in model.history]
    trained = [n for n, what in enumerate(did) if what.startswith("train")]
    # A projection that was added after the last training is new again.
    new = not trained or "add projection" in did[trained[-1] :]
    return new and model.spec.projection is not None


def _phases(
    student: Model,
    data: Data,
    recipe: Recipe,
    teacher: PairEncoder | None,
    batches: Batches,
    begins: bool,
) -> list[Phase]:
    """The phase that the recipe names, and before it the projection alone where it is to be learned."""
    net, task = student.net, data.task
    kind = objective_named(recipe.objective)
    if teacher is not None and compares(recipe):
        for head in kind.heads(task):
            teacher.spec.head(head)
    objective = kind(net, task, recipe, teacher=teacher, batches=batches)
    phases = [Phase(objective=objective, batches=batches, recipe=recipe)]
    if begins and (how := recipe.of(Distillation).projection).phases == 2:
        phases.insert(0, codec_phase(net, task, recipe, how, batches))
    return phases


def made_of(student: Model, examples: str, recipe: Recipe) -> dict[str, str]:
    """Digests of what decides a run; how often it logs, is judged and saved does not."""
    plain = {name: value for name, value in to_json(recipe).items() if name != "watch"}
    digests = {
        name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
        for name, value in (("recipe", plain), ("model", to_json(student.spec)))
    }
    return {**digests, "set of examples": examples}


def _judge(student: Model, data: Data, recipe: Recipe) -> Callable[[], float] | None:
    if data.tune is None:
        return None
    tune = data.tune
    how = How(bits=recipe.of(Distillation).projection.bits, precision=recipe.precision)
    return lambda: evaluate_examples(student.net, tune, data.task, how)[data.task.metric]
