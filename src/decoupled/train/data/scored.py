"""Lists of candidates with a teacher's scores, as the batches of a run."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoupled.model.model import Model
from decoupled.model.states import Ragged
from decoupled.train.data.batches import Batch, Batches
from decoupled.train.data.examples import Examples
from decoupled.train.data.lists import Floats, Lists
from decoupled.train.losses import UNLABELLED
from decoupled.train.reshape import with_text


@dataclass(frozen=True, kw_only=True)
class ScoredBatch(Batch):
    """Queries with their candidates, and the scores that the candidates are to be ranked by."""

    sourced: Tensor
    """`[G]`: whether the query was made from its first candidate."""
    rank: Tensor
    """`[B]` scores of a teacher."""


class ScoredLists(Batches):
    """Batches whose groups are a query with its candidates; `rank` holds the teacher's scores."""

    def __init__(
        self, lists: Lists, scores: Floats, model: Model, device: torch.device, *, tokens: int
    ) -> None:
        """Passages are cut to `tokens` tokens."""
        examples = _examples(lists, model, min(tokens, model.spec.text.passage_tokens))
        super().__init__(examples, device, pad=model.spec.text.pad)
        self._sourced = torch.from_numpy(np.ascontiguousarray(lists.sourced)).to(device)
        self._rank = torch.from_numpy(np.ascontiguousarray(scores, np.float32).ravel()).to(device)

    def build(self, groups_G: Tensor, widths: tuple[int, int], number: int = 0) -> ScoredBatch:
        """One batch of the given groups, padded to the given widths."""
        batch = super().build(groups_G, widths, number)
        return ScoredBatch(
            **vars(batch), sourced=self._sourced[groups_G], rank=self._rank[batch.rows]
        )


def _examples(lists: Lists, model: Model, tokens: int) -> Examples:
    tokenizer = with_text(model, passage_tokens=tokens).tokenizer
    windows = tokenizer.windows([p.text for p in lists.texts], [p.title for p in lists.texts])
    width = lists.rows.shape[1]
    group = np.repeat(np.arange(len(lists), dtype=np.int32), width)
    # No labels: only the teacher's scores say what is relevant.
    label = np.full((len(group), 2), UNLABELLED, np.int32)
    first = np.tile(np.arange(width) == 0, len(lists))
    return Examples(
        queries=Ragged.stack(tokenizer.queries(lists.queries)),
        passages=Ragged.stack([first[0].ids for first in windows]),
        query_of=group,
        passage_of=lists.rows.ravel().astype(np.int32),
        label=label,
        score=first.astype(np.float32),
        question=group,
        part=group,
        per_group=width,
        share="query",
    )
