"""StructBERT: hidden words, the order of a few shuffled ones, and how two texts follow one another."""

from typing import ClassVar

import torch
from torch import Tensor

from decoupled.methods.pretrain import masking
from decoupled.methods.pretrain.mlm import Losses
from decoupled.methods.pretrain.nsp import Nsp
from decoupled.methods.pretrain.segments import Builder, three_ways
from decoupled.methods.pretrain.texts import TextBatch


class Structbert(Nsp):
    """Windows of tokens that are not hidden are shuffled; one head says what was where."""

    build: ClassVar[Builder] = staticmethod(three_ways)
    classes: ClassVar[int] = 3

    def losses(self, batch: TextBatch, draw: torch.Generator) -> tuple[Losses, dict[str, Tensor]]:
        """Losses of the hidden tokens, of the moved ones and of the pair's label."""
        how = self.settings
        chosen_BT = self.choose(batch, batch.free, draw)
        # Hidden and shuffled tokens are disjoint, so each has one target.
        source_BT, moved_BT = masking.shuffle(
            batch.free & ~chosen_BT, how.shuffled, draw, window=how.window
        )
        ids_BT = self.hide(batch, chosen_BT, draw).gather(1, source_BT)
        y_BTD = self.read(batch.reading(ids_BT))
        losses, seen = self.guess(y_BTD, batch, chosen_BT)
        loss, accuracy = self.recall(y_BTD, batch, moved_BT, how.shuffled, how.window)
        return losses | {"order": (1.0, loss)}, seen | {"order_accuracy": accuracy}


OBJECTIVE = Structbert
