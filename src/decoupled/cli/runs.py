"""What a training run starts from, whether it is the same run again, and how it shows on a terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoupled.cli import printing
from decoupled.cli.evaluate import check_task, labelled_pairs, need
from decoupled.cli.models import one_way_layers
from decoupled.errors import InputError

if TYPE_CHECKING:
    from decoupled.index.documents import Pair
    from decoupled.model.model import Model
    from decoupled.train.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Job:
    """What both commands are told; it decides whether an unfinished run is the same one."""

    model: str
    data: tuple[str, ...]
    task: str
    teacher: str | None
    at: int | None
    projection: int | None
    recipe: str
    one_way: str | None = None


def changes_of(settings: list[str] | None, *, seed: int, **named: float | None) -> dict[str, Any]:
    """Fields of the recipe by dotted name; `--set` has the last word."""
    changes: dict[str, Any] = {
        f"optimiser.{name}": value for name, value in named.items() if value is not None
    }
    changes["seed"] = seed
    for setting in settings or ():
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise InputError(f"--set is {setting!r}; write name=value, for example weights.kd=0.5")
        try:
            changes[name] = json.loads(text)
        except ValueError:
            changes[name] = text
    return changes


def pairs_of(job: Job, changes: dict[str, Any], on_error: str) -> list[Pair]:
    """Everything that can be wrong before a model is loaded; the pairs."""
    check_task(job.task)
    one_way_layers(job.one_way)
    changed_recipe(job.recipe, changes)
    if job.teacher == job.model and job.at is None:
        raise InputError(
            f"--teacher is the model itself ({job.model}); name another, or leave it out"
        )
    pairs = labelled_pairs(job.data, on_error)
    need(("torch", "torch"), ("accelerate", "train"))
    return pairs


def changed_recipe(name: str, changes: dict[str, Any]) -> Recipe:
    """A named recipe with fields replaced, every value checked against the type of its field."""
    from decoupled.model.jsonable import from_json, to_json
    from decoupled.train.recipe import Recipe, recipe_named

    plain = to_json(recipe_named(name))
    for path, value in changes.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{path}={value}; choose a finite number")
        *parents, last = path.split(".")
        place = plain
        for parent in parents:
            place = place.get(parent) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place or isinstance(place[last], dict):
            raise InputError(f"{path!r} is no field of a recipe; choose one of {_names(plain)}")
        place[last] = value
    return from_json(Recipe, plain)


def _names(plain: dict[str, Any], above: str = "") -> str:
    found = [
        _names(value, f"{name}.") if isinstance(value, dict) else f"{above}{name}"
        for name, value in plain.items()
    ]
    return ", ".join(found)


def fitted_recipe(name: str, changes: dict[str, Any], pairs: int) -> Recipe:
    """The recipe with what suits this machine and the length of the run, where the user said nothing."""
    from decoupled.train.loop import accelerator_for, suits

    recipe = changed_recipe(name, changes)
    plain = changed_recipe(name, {**changes, "precision": "fp32"})
    device = accelerator_for(plain).device.type
    steps = int(pairs * recipe.optimiser.epochs / recipe.optimiser.batch)
    suited = {"watch.log_every": min(50, max(1, steps // 100)), **suits(device)}
    return changed_recipe(name, {**suited, **changes})


def models_of(job: Job) -> tuple[Model, Model | None]:
    """The student as it is trained, and its teacher where one is named."""
    from decoupled.runtime import cpu

    cpu.protect()
    from decoupled.model.model import Model
    from decoupled.train.reshape import with_one_way_layers, with_projection

    student = Model.open(job.model)
    if job.at is not None:
        student = Model.split(student, at=job.at)
    if student.spec.split == 0 and job.recipe != "plain" and job.teacher is None:
        raise InputError(
            f"{job.model} is not split, so its teacher would be itself; give --at K, name a --teacher, or "
            "train on the labels alone with --recipe plain"
        )
    if layers := one_way_layers(job.one_way):
        student = with_one_way_layers(student, layers)
    if job.projection is not None:
        student = with_projection(student, job.projection)
    teacher = Model.open(job.teacher) if job.teacher else None
    if teacher is not None and _vocabulary(teacher) != _vocabulary(student):
        raise InputError(
            f"{job.teacher} has another tokenizer than {job.model}; choose a teacher that reads the "
            "same tokens"
        )
    return student, teacher


def _vocabulary(model: Model) -> Any:
    return json.loads(model.tokenizer.json)["model"]["vocab"]


def check_output(path: Path) -> None:
    """Fail before an hour of training, not after it."""
    from decoupled.model.folder import is_model

    taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if taken and not is_model(path):
        raise InputError(f"{path} exists and is not a model folder; choose another path")


def same_run(work: Path, job: Job, recipe: Recipe, unfinished: str) -> None:
    """Refuse to go on with an unfinished run of other settings; begin a new one with a new log."""
    from decoupled.model.jsonable import to_json

    plain = to_json(recipe)
    for name in ("log_every", "save_every"):
        del plain["watch"][name]
    now = {**to_json(job), "recipe": plain}
    command = work / "command.json"
    if command.is_file() and any(work.glob(unfinished)):
        then = json.loads(command.read_text(encoding="utf-8"))
        if other := _differences(then, now):
            raise InputError(
                f"{work} holds an unfinished run with other settings ({', '.join(other)}); repeat that "
                "command to finish it, or delete the folder"
            )
        printing.note(f"going on with the run in {work}")
        return
    work.mkdir(parents=True, exist_ok=True)
    (work / "log.jsonl").unlink(missing_ok=True)
    command.write_text(json.dumps(now, indent=1), encoding="utf-8")


def _differences(then: Any, now: Any, above: str = "") -> list[str]:
    if not (isinstance(then, dict) and isinstance(now, dict)):
        return [] if then == now else [f"{above} was {then}, is {now}"]
    found = []
    for name in sorted({*then, *now}):
        found += _differences(then.get(name), now.get(name), f"{above}.{name}" if above else name)
    return found


def stopped(work: Path, bar: TrainingBar) -> str:
    """What to say after Ctrl-C: where the run was, and from where it goes on."""
    try:
        state = json.loads((work / "checkpoint" / "checkpoint.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"stopped {bar.place}, without a checkpoint; run the same command to begin again"
    phase = "" if state["phase"] == "train" else f" of the phase {state['phase']}"
    return (
        f"stopped {bar.place}; run the same command to go on from step {state['step']}{phase}, "
        f"whose checkpoint is in {work}"
    )


# Progress -----------------------------------------------------------------------------------------


class TrainingBar:
    """A progress bar over the steps of a run: loss, score, rate and time left."""

    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task = progress, task
        self._last: dict[str, Any] = {}
        self._before = ""

    @property
    def place(self) -> str:
        """Where the run is, in words."""
        if not self._last:
            return "before the first step was logged"
        if self._last["total"] is None:
            return f"while {self._last['phase']} was looking at the data"
        return f"at step {self._last['step']} of {self._last['total']}"

    def told(self, line: dict[str, Any]) -> None:
        """A line of the log."""
        if line["phase"] != self._last.get("phase", line["phase"]):
            self._last = {}
        self._last |= line
        step, total, seconds = line["step"], line["total"], line["seconds"]
        parts = [f"{step:,} pairs looked at" if total is None else f"{step}/{total}"]
        parts += [f"{n} {self._last[n]:.3f}" for n in ("loss", "tune") if n in self._last]
        if seconds and total is None:
            parts += [f"{step / seconds:.1f} pairs/s"]
        elif seconds:
            left = timedelta(seconds=round((total - step) * seconds / max(step, 1)))
            parts += [f"{step / seconds:.1f} steps/s", f"{left} left"]
        self._progress.update(
            self._task,
            description=f"{self._before}{line['phase']}",
            completed=step,
            total=total,
            said=", ".join(parts),
        )

    def begin(self, before: str) -> None:
        """Another run on the same bar; `before` says which."""
        self._last, self._before = {}, before


@contextmanager
def training_bar() -> Iterator[TrainingBar]:
    """A bar on stderr; silent when stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[said]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield TrainingBar(progress, progress.add_task("preparing", total=None, said=""))
