"""What an objective is, and how a recipe names one: each is a file of this folder under its own name."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from decoupled.errors import InputError
from decoupled.model import annex
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.head import HeadKind
from decoupled.train.data.batches import Batch, Batches
from decoupled.train.data.tasks import Task
from decoupled.train.recipe import Distillation, Recipe, Settings, recipe_from


class Objective(nn.Module):
    """The loss of a batch, for a student and perhaps a teacher.

    It is a module around the student, so that one call is one forward pass whatever wraps it (several GPUs,
    mixed precision). What else it has parameters for is trained beside the student, and is not part of it.
    """

    settings_kind: ClassVar[type[Settings]] = Distillation
    """The class of its settings beside the core of a recipe."""
    teacher: PairEncoder | None
    """The model that the student imitates."""

    def __init__(
        self,
        student: PairEncoder,
        task: Task,
        recipe: Recipe,
        *,
        teacher: PairEncoder | None = None,
        batches: Batches | None = None,
    ) -> None:
        """Where the batches of a run are given, it may compute ahead what every epoch will need."""
        super().__init__()
        self.student, self.task, self.recipe = student, task, recipe
        # Past `nn.Module`, so that the teacher's weights are not this module's: never trained, never saved.
        self.__dict__["teacher"] = teacher

    @classmethod
    def heads(cls, task: Task) -> tuple[HeadKind, ...]:
        """The heads that it trains; student and teacher must have them."""
        return (task.head,)

    def trains(self, name: str) -> bool:
        """Whether the student's parameter of that name is trained."""
        return True

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and each loss before its weight, detached."""
        raise NotImplementedError


def objective_named(name: str) -> type[Objective]:
    """The objective of the file of that name, or an error that lists them."""
    if name in annex.OBJECTIVES:
        module = annex.load(annex.OBJECTIVES[name])
    else:
        files = Path(__file__).parent.glob("[a-z]*.py")
        names_here = [file.stem for file in files if file.stem != "base"]
        if name not in names_here:
            names = ", ".join(sorted([*names_here, *annex.OBJECTIVES]))
            raise InputError(f"objective {name!r} is unknown; choose one of {names}")
        module = import_module(f"decoupled.train.objectives.{name}")
    objective: type[Objective] = module.OBJECTIVE
    return objective


def read_recipe(plain: Mapping[str, Any]) -> Recipe:
    """The recipe that was saved as this JSON, by this version or an earlier one."""
    return recipe_from(plain, objective_named(plain.get("objective", "distill")).settings_kind)
