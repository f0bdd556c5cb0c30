"""Masked language modelling: guess the words that were hidden. The other pre-training tasks build on it."""

from collections.abc import Callable, Mapping
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from decoupled.methods.pretrain import masking
from decoupled.methods.pretrain.scratch import spread
from decoupled.methods.pretrain.segments import Builder, texts
from decoupled.methods.pretrain.settings import Pretraining
from decoupled.methods.pretrain.texts import TextBatch, forward_text
from decoupled.model.nn.encoder import PairEncoder
from decoupled.train.data.batches import Batch
from decoupled.train.data.tasks import TASKS
from decoupled.train.objectives.base import Objective
from decoupled.train.recipe import Recipe

SLICE = 4096
"""The number of tokens whose scores over the whole vocabulary are held at once."""
Losses = dict[str, tuple[float, Tensor]]
"""Weight and value of each loss, by name."""


class LanguageHead(nn.Module):
    """States to scores of every token: linear, GELU, norm, then the table of the embedding itself."""

    def __init__(self, width: int, table: int, vocab: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, table)
        self.norm = nn.LayerNorm(table)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, x_MD: Tensor, table_VE: Tensor) -> Tensor:
        """`[M,V]` scores of every token of the vocabulary."""
        return F.linear(self.norm(F.gelu(self.dense(x_MD))), table_VE, self.bias)


class Mlm(Objective):
    """Whole words are hidden, others each time that a text comes; the states say which they were."""

    settings_kind = Pretraining
    build: ClassVar[Builder] = staticmethod(texts)
    """The function that cuts a corpus for this objective."""

    def __init__(self, student: PairEncoder, recipe: Recipe, *, mask: int) -> None:
        super().__init__(student, TASKS["rank"], recipe)
        self.mask, self.settings = mask, recipe.of(Pretraining)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.make_heads()

    def make_heads(self) -> None:
        """Create the heads that are trained beside the student."""
        encoder = self.student.spec.encoder
        self.language = LanguageHead(
            encoder.width, encoder.embedding.width, encoder.embedding.vocab
        )
        spread(self.language)

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over tensors that were learnt before, where they fit."""
        own = self.state_dict()
        fits = {n: t for n, t in tensors.items() if n in own and own[n].shape == t.shape}
        self.load_state_dict({**own, **fits})

    def own_tensors(self) -> dict[str, Tensor]:
        """The tensors that were learnt beside the student."""
        return {n: t for n, t in self.state_dict().items() if not n.startswith("student.")}

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and each loss before its weight and each accuracy, detached."""
        texts = cast(TextBatch, batch)
        draw = masking.generator(texts.query_ids.device, self.recipe.seed, texts.number)
        losses, seen = self.losses(texts, draw)
        total = torch.stack([weight * value for weight, value in losses.values()]).sum()
        return total, {name: value.detach() for name, (_, value) in losses.items()} | seen

    def losses(self, batch: TextBatch, draw: torch.Generator) -> tuple[Losses, dict[str, Tensor]]:
        """Each loss with its weight, and accuracies to report."""
        chosen_BT = self.choose(batch, batch.free, draw)
        y_BTD = self.read(batch.reading(self.hide(batch, chosen_BT, draw)))
        return self.guess(y_BTD, batch, chosen_BT)

    def choose(self, batch: TextBatch, free_BT: Tensor, draw: torch.Generator) -> Tensor:
        """`[B,T]` mask of the tokens to guess."""
        how = self.settings
        return masking.choose(free_BT, batch.begins, how.mask, draw, words=how.words)

    def hide(self, batch: TextBatch, chosen_BT: Tensor, draw: torch.Generator) -> Tensor:
        """The ids of a batch with the chosen tokens hidden."""
        vocab = self.student.spec.encoder.embedding.vocab
        return masking.hide(batch.ids, chosen_BT, draw, mask=self.mask, vocab=vocab)

    def read(self, batch: TextBatch) -> Tensor:
        """The states of all tokens."""
        return forward_text(self.student, batch)

    def guess(
        self, y_BTD: Tensor, batch: TextBatch, chosen_BT: Tensor, name: str = "mlm"
    ) -> tuple[Losses, dict[str, Tensor]]:
        """Loss and accuracy of guessing the chosen tokens from their states."""
        loss, accuracy = self.recall(y_BTD, batch, chosen_BT, self.settings.mask)
        return {name: (1.0, loss)}, {f"{name}_accuracy": accuracy}

    def recall(
        self, y_BTD: Tensor, batch: TextBatch, chosen_BT: Tensor, share: float, more: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Loss and accuracy of naming the chosen tokens: at most `share` of all, and `more` for each text."""
        place_M = places(chosen_BT, batch, share, more)
        table_VE = table_of(self.student)
        return in_slices(
            lambda x_MD: self.language(x_MD, table_VE),
            rows_at(y_BTD, place_M),
            labels_at(batch.ids, place_M),
        )


def table_of(net: PairEncoder) -> Tensor:
    """`[V,E]` the rows of all tokens, however they are held."""
    table = net.embedding.tokens
    if isinstance(table, nn.Embedding):
        return table.weight
    device = next(net.parameters()).device
    return cast(Tensor, table(torch.arange(net.spec.encoder.embedding.vocab, device=device)))


def places(chosen_BT: Tensor, batch: Batch, share: float, more: int = 1) -> Tensor:
    """`[M]` positions of the chosen tokens among all of a batch, -1 after the last of them.

    They are at most that share of the tokens and so many more of each text. M is known from the lengths of
    the texts, since to count on a GPU means to wait for it.
    """
    most = int(share * batch.real_tokens) + more * len(chosen_BT)
    return torch.nonzero_static(chosen_BT.flatten(), size=most, fill_value=-1)[:, 0]


def rows_at(y_BTD: Tensor, place_M: Tensor) -> Tensor:
    """The rows at these positions; any row for -1."""
    return y_BTD.flatten(0, 1).index_select(0, place_M.clamp(min=0))


def labels_at(ids_BT: Tensor, place_M: Tensor) -> Tensor:
    """The tokens at these positions, -100 for -1."""
    return torch.where(place_M >= 0, ids_BT.flatten()[place_M.clamp(min=0)], -100)


def cross_entropy(logits_MC: Tensor, right_M: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy over rows that have a label (0 if none has), and the share that is right."""
    return in_slices(lambda logits: logits, logits_MC, right_M, rows=len(right_M))


def in_slices(
    head: Callable[[Tensor], Tensor], x_MD: Tensor, right_M: Tensor, rows: int = SLICE
) -> tuple[Tensor, Tensor]:
    """`cross_entropy` of what `head` says of each row, the scores of so many rows held at a time.

    More are computed again for the gradient, as in Reformer's chunked loss.
    """

    def sums(x_SD: Tensor, right_S: Tensor) -> tuple[Tensor, Tensor]:
        scores_SC = head(x_SD)
        loss = F.cross_entropy(scores_SC.float(), right_S, reduction="sum")
        return loss, (scores_SC.argmax(-1) == right_S).sum()

    if len(x_MD) <= rows:
        loss, right = sums(x_MD, right_M)
    else:
        slices = [slice(n, n + rows) for n in range(0, len(x_MD), rows)]
        each = [
            checkpoint(sums, x_MD[s], right_M[s], use_reentrant=False, preserve_rng_state=False)
            for s in slices
        ]
        loss, right = (torch.stack(some).sum() for some in zip(*each, strict=True))
    count = (right_M >= 0).sum().clamp(min=1)
    return loss / count, (right / count).detach()


OBJECTIVE = Mlm
