"""What a training run starts from: recipe, student and teacher; and whether it is the same run again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decoupled.errors import InputError, OptionError
from decoupled.model.jsonable import to_json
from decoupled.model.model import Model
from decoupled.model.spec import OneWay
from decoupled.train.loop import accelerator_for, suits
from decoupled.train.recipe import Recipe, change_recipe
from decoupled.train.reshape import with_one_way_layers, with_projection


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


def student_and_teacher(
    model: str,
    *,
    at: int | None = None,
    one_way: OneWay = (),
    projection: int | None = None,
    teacher: str | None = None,
    plain: bool = False,
) -> tuple[Model, Model | None]:
    """The student as it is trained, and its teacher where one is named; `plain` needs none."""
    student = Model.open(model)
    if at is not None:
        student = Model.split(student, at=at)
    if student.spec.split == 0 and not plain and teacher is None:
        raise OptionError(
            f"{model} is not split, so its teacher would be itself; give --at K, name a --teacher, or "
            "train on the labels alone with --recipe plain"
        )
    if one_way:
        student = with_one_way_layers(student, one_way)
    if projection is not None:
        student = with_projection(student, projection)
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
