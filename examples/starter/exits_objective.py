"""The exits of a reader alone: the rest of the model stays as it is, and so do its scores and its indexes."""

from __future__ import annotations

from typing import cast

from reader_objective import Reader, teacher_scores
from rounds import ReaderBatch
from torch import Tensor

from decoupled.model.parts.exits import EXITS
from decoupled.train.data.batches import Batch
from decoupled.train.loop.forward import Pass
from decoupled.train.loop.packed import pays
from decoupled.train.objectives.adapt import exit_loss, read_groups


class Exits(Reader):
    """What the last layer says, learnt by the heads below it."""

    def trains(self, name: str) -> bool:
        """Their heads, and nothing else."""
        return name.startswith(EXITS)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and the same by its name, detached."""
        batch = cast(ReaderBatch, batch)
        projection = self.student.spec.projection
        bits = projection.bits if projection is not None else None
        how = Pass(bits=bits, packed=pays(batch.query_ids), exits=True)
        outputs = read_groups(self.student, batch, how, vectors=False)
        loss = exit_loss(outputs, teacher_scores(batch), self.settings.temperature)
        return loss, {"exits": loss.detach()}
