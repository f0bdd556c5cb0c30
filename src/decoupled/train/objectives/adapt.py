"""Say what a teacher's scores of the candidates of a query say; answers and vectors stay what they were.

The losses are a reader's. What it says itself before it is adapted is the aim of whatever the teacher says
nothing about: where answers lie, and the vectors of texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from decoupled.model.nn.encoder import PairEncoder
from decoupled.train.data.batches import Batch
from decoupled.train.data.rounds import ReaderBatch
from decoupled.train.forward import Pass
from decoupled.train.objectives.reader import Reader, read_groups

Told = Callable[[Tensor], Tensor]
"""What a teacher says to a student, of its logits."""


class Adapt(Reader):
    """A reader's losses against the teacher's scores and against what the student was `before`.

    With `keep` the input component stands still, and every stored state with it. `own` is the share of its
    own scores of before in the teacher's. `told` is what the teacher that gives hidden states says with its
    logits, where it alone teaches: it runs in every step, so nobody has to ask it before.
    """

    before: PairEncoder | None

    def __init__(
        self,
        *args: Any,
        before: PairEncoder | None = None,
        keep: bool = False,
        own: float = 0.0,
        told: Told | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.keep, self.own, self.told, spec = keep, own, told, self.student.spec
        moves = spec.vector is not None and not keep
        stays = moves or own > 0 or any(head.kind == "span" for head in spec.heads)
        self.__dict__["before"] = before if stays else None
        if not moves:
            # A vector that stands still, or that nobody learnt, has nothing to be compared with.
            weights = replace(self.recipe.reader, vector=0.0, vector_kd=0.0)
            self.recipe = replace(self.recipe, reader=weights)

    def trains(self, name: str) -> bool:
        """All of it, or what no stored state was made by."""
        return not (self.keep and self.student.spec.is_input(name))

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and each loss before its weight, detached."""
        batch = cast(ReaderBatch, batch)
        # Without dropout: differences between candidates are small, and its noise is as large as they are.
        self.student.eval()
        if self.before is not None:
            how = Pass(packed=self.packs(batch, self.before))
            near = bool(self.recipe.reader.vector_kd)
            with torch.no_grad():
                was = read_groups(self.before.eval(), batch, how, vectors=near)
            assert batch.rank is not None, "adapting is imitating scores"
            rank = batch.rank + self.own * was.rank.flatten().float()
            batch = replace(batch, span=was.span, aims=was.vectors, rank=rank)
        return super().forward(batch)

    def heard(self, batch: ReaderBatch, rank_B: Tensor) -> ReaderBatch:
        """With what the teacher says of it, if nobody has asked it before."""
        return batch if self.told is None else replace(batch, rank=self.told(rank_B.float()))


OBJECTIVE = Adapt
