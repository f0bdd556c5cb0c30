"""A training run on disk: safetensors and JSON, nothing pickled, enough to go on bit by bit."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoupled.errors import InputError

TENSORS, STATE = "checkpoint.safetensors", "checkpoint.json"
STUDENT = "student"
"""Model folder with what a run began with, where finding that took long."""


def save(folder: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Replace the checkpoint of a run; the folder is renamed into place, so it is whole or the old one."""
    draft, place, old = (
        folder / name for name in ("checkpoint.new", "checkpoint", "checkpoint.old")
    )
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, draft / TENSORS)
    (draft / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
    for name in (TENSORS, STATE):
        with (draft / name).open("rb") as file:
            os.fsync(file.fileno())
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    draft.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The last whole checkpoint of a run; None when there is none."""
    for name in ("checkpoint", "checkpoint.old"):
        place = folder / name
        if (place / STATE).is_file():
            try:
                tensors = load_file(place / TENSORS)
                return tensors, json.loads((place / STATE).read_text(encoding="utf-8"))
            except (OSError, ValueError, SafetensorError) as error:
                raise InputError(
                    f"the checkpoint {place} cannot be read ({error}); delete it to start afresh"
                ) from None
    return None


def exists(folder: Path) -> bool:
    """Is there a run to go on with?"""
    return any((folder / name / STATE).is_file() for name in ("checkpoint", "checkpoint.old"))


def clear(folder: Path) -> None:
    """Forget the checkpoint of a finished run."""
    for name in ("checkpoint", "checkpoint.old", "checkpoint.new", STUDENT):
        shutil.rmtree(folder / name, ignore_errors=True)


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of the optimiser's state, by number of parameter and name."""
    found: dict[str, Tensor] = {}
    for number, values in optimiser.state_dict()["state"].items():
        for name, value in values.items():
            tensor = value if isinstance(value, Tensor) else torch.tensor(float(value))
            found[f"optimiser.{number}.{name}"] = tensor
    return found


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimiser_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser."):
            _, number, field = name.split(".", 2)
            state.setdefault(int(number), {})[field] = tensor
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def random_tensors() -> dict[str, Tensor]:
    """The state of the generators that dropout draws from."""
    found = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        found["random.cuda"] = torch.cuda.get_rng_state()
    return found


def restore_random(tensors: dict[str, Tensor]) -> None:
    """Put back what `random_tensors` gave."""
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
