"""WKLM: was a name in a text exchanged for another of its kind? Knowing that takes knowing about things."""

import torch
from torch import Tensor, nn

from decoupled.methods.pretrain.mlm import Losses, Mlm, cross_entropy
from decoupled.methods.pretrain.scratch import spread
from decoupled.methods.pretrain.texts import TextBatch

DROPPED = 0.05


class Wklm(Mlm):
    """Few words are hidden, none of a name; the tokens beside a name say whether it was exchanged."""

    def make_heads(self) -> None:
        """Create the language head and the head for names."""
        super().make_heads()
        self.dropped = nn.Dropout(DROPPED)
        self.name = nn.Linear(2 * self.student.spec.encoder.width, 2)
        spread(self.name)

    def losses(self, batch: TextBatch, draw: torch.Generator) -> tuple[Losses, dict[str, Tensor]]:
        """Losses of the hidden words and of the names."""
        chosen_BT = self.choose(batch, batch.free & ~named(batch), draw)
        y_BTD = self.read(batch.reading(self.hide(batch, chosen_BT, draw)))
        losses, seen = self.guess(y_BTD, batch, chosen_BT)
        if batch.mentions is None:
            return losses, seen
        # P(e|C) from [h_before; h_after], the boundary states of the mention (WKLM).
        beside_BM2D = torch.stack([_rows(y_BTD, batch.mentions[..., n]) for n in (0, 1)], 2)
        logits_BM2 = self.name(self.dropped(beside_BM2D.flatten(2)))
        loss, accuracy = cross_entropy(logits_BM2.flatten(0, 1), _labels(batch.mentions))
        return losses | {"name": (1.0, loss)}, seen | {"name_accuracy": accuracy}


def named(batch: TextBatch) -> Tensor:
    """`[B,T]`, true for tokens of a name."""
    if batch.mentions is None:
        return torch.zeros_like(batch.free)
    before_BM, after_BM, label_BM = batch.mentions.unbind(-1)
    place_T = torch.arange(batch.free.shape[1], device=batch.free.device)
    inside_BMT = (place_T > before_BM[..., None]) & (place_T < after_BM[..., None])
    return (inside_BMT & (label_BM >= 0)[..., None]).any(1)


def _rows(y_BTD: Tensor, place_BM: Tensor) -> Tensor:
    return y_BTD.gather(1, place_BM[..., None].expand(-1, -1, y_BTD.shape[-1]))


def _labels(mentions_BM3: Tensor) -> Tensor:
    label_BM = mentions_BM3[..., 2]
    return torch.where(label_BM >= 0, label_BM, -100).flatten()


OBJECTIVE = Wklm
