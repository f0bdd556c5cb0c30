"""A training run on disk: what it was told, its log, and a checkpoint that is enough to go on bit by bit.

Safetensors and JSON, nothing pickled.
"""

import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from decoupled.errors import InputError
from decoupled.model.files import written
from decoupled.model.jsonable import to_json
from decoupled.model.spec import ModelSpec
from decoupled.train.place import Line
from decoupled.train.recipe import Recipe

TENSORS, STATE = "checkpoint.safetensors", "checkpoint.json"
UNFINISHED = f"checkpoint*/{STATE}"
STUDENT = "student"
"""Model folder with the initial student of a run, where finding that took long."""


def work_folder(output: str | Path) -> Path:
    """The folder of a run beside its output: a model never replaces a folder that holds other things."""
    return Path(f"{output}.run")


def stopped_at(work: Path) -> str | None:
    """The step from which a stopped run would go on, in words; None without a checkpoint."""
    try:
        state = json.loads((work / "checkpoint" / "checkpoint.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    phase = "" if state["phase"] == "train" else f" of the phase {state['phase']}"
    return f"step {state['step']}{phase}, whose checkpoint is in {work}"


def read_lines(path: Path) -> list[Line]:
    """The whole lines of a log; one that was cut off is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            lines.append(json.loads(text))
    return lines


def ended(output: str | Path) -> tuple[Line, float | None]:
    """The last log line of a finished run, with times from before a stop, and its best tune score."""
    log = work_folder(output) / "log.jsonl"
    lines = read_lines(log)
    best = max((round(line["tune"], 4) for line in lines if "tune" in line), default=None)
    return {"steps": lines[-1]["step"], "seconds": lines[-1]["seconds"], "log": str(log)}, best


def same_run(work: Path, options: object, recipe: Recipe, unfinished: str = UNFINISHED) -> bool:
    """Whether an unfinished run goes on; raise for one of other settings, and else begin a new log.

    The options of the command are a dataclass, or plain values by name.
    """
    plain = to_json(recipe)
    for name in ("log_every", "save_every"):
        # How often a run logs and saves does not change its result.
        del plain["watch"][name]
    # Through JSON, so that tuples compare equal to the lists that were read.
    now = {**json.loads(json.dumps(to_json(options))), "recipe": plain}
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


def weights_digest(net: nn.Module, spec: ModelSpec) -> str:
    """A digest of the spec and the weights of a model."""
    digest = hashlib.sha256(json.dumps(to_json(spec)).encode())
    for name, tensor in net.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def save(folder: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Replace the checkpoint of a run; the folder is renamed into place, so it is whole or the old one."""
    draft, place, old = (
        folder / name for name in ("checkpoint.new", "checkpoint", "checkpoint.old")
    )
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    with written(draft / TENSORS) as draft_file:
        save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, draft_file)
    (draft / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
    # The bytes must be on the disk before the rename, or a crash may leave an empty checkpoint.
    for name in (TENSORS, STATE):
        with (draft / name).open("rb") as file:
            os.fsync(file.fileno())
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        # Between the two renames only `checkpoint.old` exists, which is why `load` looks there too.
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
    """Whether there is a checkpoint to go on from."""
    return any((folder / name / STATE).is_file() for name in ("checkpoint", "checkpoint.old"))


def clear(folder: Path) -> None:
    """Delete the checkpoint of a finished run."""
    for name in ("checkpoint", "checkpoint.old", "checkpoint.new", STUDENT):
        shutil.rmtree(folder / name, ignore_errors=True)


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of the optimiser's state, by number of parameter and name."""
    return {
        f"optimiser.{number}.{name}": value
        for number, values in optimiser.state_dict()["state"].items()
        for name, value in values.items()
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore the optimiser's state from what `optimiser_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser."):
            _, number, field = name.split(".", 2)
            state.setdefault(int(number), {})[field] = tensor
    # Settings such as the rate come from the recipe, so only the moments are restored.
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def random_tensors() -> dict[str, Tensor]:
    """The state of the generators that dropout draws from."""
    state = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["random.cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random(tensors: dict[str, Tensor]) -> None:
    """Restore the generators from what `random_tensors` gave."""
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
