"""Next sentence prediction: beside the hidden words, does the second text follow the first?"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from decoupled.methods.pretrain.mlm import Losses, Mlm, cross_entropy
from decoupled.methods.pretrain.scratch import spread
from decoupled.methods.pretrain.segments import Builder, following
from decoupled.methods.pretrain.texts import TextBatch


class Nsp(Mlm):
    """Adds a head that classifies the pair from its first state."""

    build: ClassVar[Builder] = staticmethod(following)
    classes: ClassVar[int] = 2

    def make_heads(self) -> None:
        """Create the language head and the pair head."""
        super().make_heads()
        width = self.student.spec.encoder.width
        self.pooled, self.pair = nn.Linear(width, width), nn.Linear(width, self.classes)
        spread(self.pooled)
        spread(self.pair)

    def guess(
        self, y_BTD: Tensor, batch: TextBatch, chosen_BT: Tensor, name: str = "mlm"
    ) -> tuple[Losses, dict[str, Tensor]]:
        """The hidden words, and the label of the pair."""
        losses, seen = super().guess(y_BTD, batch, chosen_BT, name)
        loss, accuracy = cross_entropy(self.judge(y_BTD), batch.label[:, 0])
        pair = {"pair": (self.settings.pair, loss)}
        return losses | pair, seen | {"pair_accuracy": accuracy}

    def judge(self, y_BTD: Tensor) -> Tensor:
        """`[B,classes]` logits of the pairs' labels."""
        # BERT's pooler: the first state through a tanh layer.
        logits: Tensor = self.pair(torch.tanh(self.pooled(y_BTD[:, 0])))
        return logits


OBJECTIVE = Nsp
