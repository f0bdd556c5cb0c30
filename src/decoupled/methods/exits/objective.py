"""The exits of a reader alone: the rest of the model stays as it is, and so do its scores and its indexes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from decoupled.model.parts.exits import EXITS
from decoupled.train.data.batches import Batch
from decoupled.train.loop.forward import Pass
from decoupled.train.objectives.adapt import GroupOutputs, rank_kd, read_groups
from decoupled.train.objectives.base import Objective
from decoupled.train.recipe import Settings


@dataclass(frozen=True, kw_only=True)
class ExitSettings(Settings):
    """Settings of the exits: how soft the scores are that they learn from."""

    temperature: float = 1.0


class Exits(Objective):
    """Trains the exits to say what the last layer says, and what a teacher says where a batch has one."""

    settings_kind = ExitSettings

    def trains(self, name: str) -> bool:
        """Only the parameters of the exits."""
        return name.startswith(EXITS)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and the same by its name, detached."""
        projection = self.student.spec.projection
        bits = projection.bits if projection is not None else None
        how = Pass(bits=bits, exits=True)
        outputs = read_groups(self.student, batch, how, vectors=False)
        teacher_B: Tensor | None = getattr(batch, "rank", None)
        target_GC = None if teacher_B is None else teacher_B.view_as(outputs.rank)
        # The settings may be those of a reader, which has a temperature too.
        temperature: float = getattr(self.recipe.settings, "temperature", 1.0)
        loss = exit_loss(outputs, target_GC, temperature)
        return loss, {"exits": loss.detach()}


def exit_loss(outputs: GroupOutputs, target_GC: Tensor | None, temperature: float) -> Tensor:
    """KL of every exit against the last layer, and as much against the teacher where there is one."""
    # Detached: the exits follow the last layer, which must not move towards them.
    targets = [one for one in (outputs.rank.detach(), target_GC) if one is not None]
    return torch.stack(
        [
            rank_kd(score.float(), target.float(), temperature)
            for score in outputs.exits
            for target in targets
        ]
    ).mean()


OBJECTIVE = Exits
