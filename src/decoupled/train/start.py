"""What a training run starts from: recipe, student and teacher; and whether it is the same run again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoupled.errors import InputError, OptionError
from decoupled.index.documents import Pair
from decoupled.model.jsonable import to_json
from decoupled.model.model import Model
from decoupled.model.spec import OneWay
from decoupled.train.data.tasks import task_for
from decoupled.train.loop import Progress, accelerator_for, suits
from decoupled.train.recipe import Recipe, change_recipe
from decoupled.train.reshape import reshaped
from decoupled.train.run import distill, finetune


def recipe(
    name: str = "deformer", changes: Mapping[str, Any] | None = None, *, pairs: int = 0
) -> Recipe:
    """A named recipe as suits this machine and so many pairs, with what is to be otherwise by dotted name."""
    changes = changes or {}
    chosen = change_recipe(name, changes)
    plain = change_recipe(name, {**changes, "precision": "fp32"})
    device = accelerator_for(plain).device.type
    steps = int(pairs * chosen.optimiser.epochs / chosen.optimiser.batch)
    suited = {"watch.log_every": min(50, max(1, steps // 100)), **suits(device)}
    return change_recipe(name, {**suited, **changes})


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training that begins, or goes on where it was stopped."""

    told: Mapping[str, Any]
    """What a command was told: model, data, task, teacher, at, projection, recipe, one_way."""
    output: Path
    student: Model
    teacher: Model | None
    recipe: Recipe
    resumed: bool

    @property
    def log(self) -> Path:
        """What training logs, a line of JSON at a time."""
        return work_folder(self.output) / "log.jsonl"

    def train(self, pairs: Sequence[Pair], progress: Progress | None = None) -> Model:
        """Distil, or train on the labels alone; saved where the run is told to."""
        task, recipe, out = self.told["task"], self.recipe, self.output
        if self.told["recipe"] == "plain" and self.teacher is None:
            return finetune(
                self.student, data=pairs, task=task, recipe=recipe, out=out, progress=progress
            )
        return distill(
            self.student,
            data=pairs,
            task=task,
            teacher=self.teacher,
            recipe=recipe,
            out=out,
            progress=progress,
        )

    def facts(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        """What was made, and its score on the tune split; the log also knows what was before a stop."""
        lines = read_lines(self.log)
        scores = [line["tune"] for line in lines if "tune" in line]
        return {
            "model": str(self.output),
            "task": self.told["task"],
            "recipe": self.told["recipe"],
            "pairs": len(pairs),
            "steps": lines[-1]["step"],
            "seconds": lines[-1]["seconds"],
            "metric": task_for(self.told["task"], pairs, self.student.spec.heads).metric,
            "tune": round(max(scores), 4) if scores else None,
            "log": str(self.log),
        }


def start(
    told: Mapping[str, Any],
    changes: Mapping[str, Any],
    *,
    output: Path,
    pairs: int,
    one_way: OneWay = (),
    unfinished: str = "checkpoint*/checkpoint.json",
) -> Run:
    """Open what a run needs; one of other settings that is not finished is refused."""
    student, teacher = _models(told, one_way)
    chosen = recipe(told["recipe"], changes, pairs=pairs)
    resumed = same_run(work_folder(output), told, chosen, unfinished)
    return Run(
        told=told,
        output=output,
        student=student,
        teacher=teacher,
        recipe=chosen,
        resumed=resumed,
    )


def work_folder(output: Path) -> Path:
    """Beside what is made: the log, the checkpoint, and what the run was told."""
    return Path(f"{output}.run")


def stopped_at(work: Path) -> str | None:
    """From where a stopped run would go on, in words; None without a checkpoint."""
    try:
        state = json.loads((work / "checkpoint" / "checkpoint.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    phase = "" if state["phase"] == "train" else f" of the phase {state['phase']}"
    return f"step {state['step']}{phase}, whose checkpoint is in {work}"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log; one that was cut off is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            lines.append(json.loads(text))
    return lines


def _models(told: Mapping[str, Any], one_way: OneWay) -> tuple[Model, Model | None]:
    """The student as it is trained, and its teacher where one is named."""
    model, at, teacher = told["model"], told["at"], told["teacher"]
    student = Model.open(model)
    if (
        (student.spec.split if at is None else at) == 0
        and told["recipe"] != "plain"
        and teacher is None
    ):
        raise OptionError(
            f"{model} is not split, so its teacher would be itself; give --at K, name a --teacher, or "
            "train on the labels alone with --recipe plain"
        )
    student = reshaped(student, at=at, one_way=one_way, projection=told["projection"])
    guide = Model.open(teacher) if teacher else None
    if guide is not None and _vocabulary(guide) != _vocabulary(student):
        raise InputError(
            f"{teacher} has another tokenizer than {model}; choose a teacher that reads the "
            "same tokens"
        )
    return student, guide


def _vocabulary(model: Model) -> Any:
    return json.loads(model.tokenizer.json)["model"]["vocab"]


def same_run(work: Path, told: Mapping[str, Any], recipe: Recipe, unfinished: str) -> bool:
    """Does an unfinished run go on? Refuse one of other settings; begin a new one with a new log."""
    plain = to_json(recipe)
    for name in ("log_every", "save_every"):
        del plain["watch"][name]
    now = {**json.loads(json.dumps(told)), "recipe": plain}
    command = work / "command.json"
    if command.is_file() and any(work.glob(unfinished)):
        then = json.loads(command.read_text(encoding="utf-8"))
        if other := _differences(then, now):
            raise InputError(
                f"{work} holds an unfinished run with other settings ({', '.join(other)}); repeat that "
                "command to finish it, or delete the folder"
            )
        return True
    work.mkdir(parents=True, exist_ok=True)
    (work / "log.jsonl").unlink(missing_ok=True)
    command.write_text(json.dumps(now, indent=1), encoding="utf-8")
    return False


def _differences(then: Any, now: Any, above: str = "") -> list[str]:
    if not (isinstance(then, dict) and isinstance(now, dict)):
        return [] if then == now else [f"{above} was {then}, is {now}"]
    differing = []
    for name in sorted({*then, *now}):
        path = f"{above}.{name}" if above else name
        differing += _differences(then.get(name), now.get(name), path)
    return differing
