"""The batches of a reader's run: a step reads a batch of questions, then ranks a batch of queries.

Groups are drawn anew for each epoch. After some rounds the same ones come again, so that what a teacher says
of them is computed once, kept on disk, and costs a later step nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from blocks import in_blocks
from groups import Part, Pool
from reader_recipe import ReaderSettings
from torch import Tensor

from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.head import HeadKind
from decoupled.train.data.batches import Batch, Batches, Groups
from decoupled.train.data.cache import Cache
from decoupled.train.data.examples import Examples
from decoupled.train.loop.forward import EVALUATION_TOKENS, autocast, forward_pair
from decoupled.train.recipe import Precision, Recipe

Step = tuple["ReaderBatches", Groups]
PARTS: tuple[Part, ...] = ("read", "rank")
BLOCK = 1024
"""Groups whose targets are written together."""


@dataclass(frozen=True, kw_only=True)
class ReaderBatch(Batch):
    """Groups of pairs, with what the losses of a reader compare them to."""

    soft: Tensor
    """`[G]` share of the retriever's cosines in the target of each ranking; 1 where nothing is labelled."""
    aims: tuple[Tensor, Tensor] | None = None
    """The retriever's vectors of the queries `[G,V]` and the passages `[B,V]`."""
    rank: Tensor | None = None
    """`[B]` logits of a teacher."""
    span: Tensor | None = None
    """`[B,1+P,2]` logits of a teacher."""


@dataclass(frozen=True, kw_only=True)
class Teachers:
    """Whom the heads of a student imitate: the mean of the logits of each list."""

    rank: Sequence[PairEncoder] = ()
    span: Sequence[PairEncoder] = ()

    @torch.no_grad()
    def logits(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """Of the rank head `[B]` and of the span head `[B,1+P,2]`; None without a teacher for it."""
        heard: dict[HeadKind, list[Tensor]] = {"rank": [], "span": []}
        for net in dict.fromkeys((*self.rank, *self.span)):
            heads = [head for head in heard if net in vars(self)[head]]
            for head, logits in forward_pair(net.eval(), batch, *heads).by_head.items():
                heard[head].append(logits.float())
        rank, span = (torch.stack(all_).mean(0) if all_ else None for all_ in heard.values())
        return None if rank is None else rank[:, 0], span


class Targets:
    """The teachers' logits of all pairs of some batches: on the device, ragged, in half precision.

    A pair has its rank logit, then start and end of each row of its span.
    """

    def __init__(self, batches: Batches, teachers: Teachers) -> None:
        self._teachers, self._batches = teachers, batches
        examples = batches.examples
        lengths = np.ones(len(examples), np.int64)
        if teachers.span:
            lengths += 2 + 2 * examples.passages.lengths[examples.passage_of]
        self._ends = np.cumsum(lengths)
        self._starts = torch.from_numpy(self._ends - lengths).to(batches.device)
        self.values = torch.zeros(0, dtype=torch.half, device=batches.device)

    def fill(self, cache: Cache, name: str, precision: Precision) -> Targets:
        """Ask the teachers about every pair that the cache does not know."""
        batches, width = self._batches, self._batches.examples.per_group

        def make(part: slice) -> npt.NDArray[np.float16]:
            first, last = part.start * width, part.stop * width
            base = int(self._ends[first - 1]) if first else 0
            size = int(self._ends[last - 1]) - base
            values = torch.zeros(size, dtype=torch.half, device=batches.device)
            groups = np.arange(part.start, part.stop)
            for batch in batches.walk(batches.ordered(EVALUATION_TOKENS, groups)):
                with autocast(batches.device, precision):
                    rank, span = self._teachers.logits(batch)
                if rank is not None:
                    values[self._starts[batch.rows] - base] = rank.half()
                if span is not None:
                    index, real = self._places(batch)
                    values[index[real] - base] = span[real].half()
            return values.cpu().numpy()

        found = in_blocks(cache, name, batches.examples.groups, BLOCK, make)
        self.values = torch.from_numpy(found).to(batches.device)
        return self

    def of(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """Those of a batch, padded as the teachers' would be."""
        rank = self.values[self._starts[batch.rows]].float() if self._teachers.rank else None
        if not self._teachers.span:
            return rank, None
        index, real = self._places(batch)
        span = self.values[index.clamp(max=len(self.values) - 1)].float()
        return rank, span * real[..., None]

    def _places(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """`[B,1+P,2]` where the logits of spans are, and `[B,1+P]` which are real."""
        real = batch.span_real
        row = 2 * torch.arange(real.shape[1], device=real.device)[:, None]
        row = 1 + row + torch.arange(2, device=real.device)
        return self._starts[batch.rows][:, None, None] + row, real


class ReaderBatches(Batches):
    """The batches of one part of a round; `aims` are the retriever's vectors of all queries and windows."""

    def __init__(
        self,
        examples: Examples,
        device: torch.device,
        *,
        pad: int,
        soft: npt.NDArray[np.float32],
        aims: tuple[Tensor, Tensor] | None = None,
        like: Batches | None = None,
    ) -> None:
        super().__init__(examples, device, pad=pad, like=like)
        self._soft, self._aims = torch.from_numpy(soft).to(device), aims
        self.targets: Targets | None = None

    def build(self, groups_G: Tensor, widths: tuple[int, int], number: int = 0) -> ReaderBatch:
        """One batch of the given groups, padded to the given widths."""
        batch = super().build(groups_G, widths, number)
        rank, span = self.targets.of(batch) if self.targets else (None, None)
        aims = None
        if self._aims is not None:
            queries, windows = self._aims
            first = self._query_of[batch.rows[:: batch.per_group]]
            aims = queries[first].float(), windows[self._passage_of[batch.rows]].float()
        soft = self._soft[groups_G]
        return ReaderBatch(**vars(batch), soft=soft, aims=aims, rank=rank, span=span)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounds:
    """Epochs of groups, for the loop."""

    pool: Pool
    device: torch.device
    recipe: Recipe
    pad: int
    aims: tuple[Tensor, Tensor] | None = None
    teachers: Teachers | None = None
    """Whose targets are kept; None where nobody teaches, or more of the teacher is needed than they are."""
    cache: Cache = field(default_factory=Cache)
    _made: dict[int, list[Step]] = field(default_factory=dict)

    def epoch(
        self, seed: int, number: int, *, size: int = 0, tokens: int | None = None
    ) -> list[Step]:
        """The batches of an epoch, to read and to rank in turn."""
        number %= self.recipe.of(ReaderSettings).sampling.rounds
        if number not in self._made:
            self._made.clear()
            parts = [part for part in PARTS if part == "rank" or len(self.pool.parts[part])]
            each = [self._part(part, number, seed) for part in parts]
            self._made[number] = [step for steps in zip(*each, strict=True) for step in steps]
        return self._made[number]

    def walk(self, batches: list[Step], first: int = 0) -> Iterator[ReaderBatch]:
        """The batches as tensors; `first` numbers the first of them."""
        for shift, (source, groups) in enumerate(batches):
            for batch in source.walk([groups], first + shift):
                yield cast(ReaderBatch, batch)

    def tokens(self, groups: Step) -> int:
        """Real tokens of a batch; a query counts once."""
        return groups[0].tokens(groups[1])

    def _part(self, part: Part, number: int, seed: int) -> list[Step]:
        batch = self.recipe.optimiser.batch
        examples, soft = self.pool.draw(part, batch, number, seed)
        if self.aims is None:
            soft = np.where(soft < 1, 0, 1).astype(np.float32)
        made = ReaderBatches(
            examples, self.device, pad=self.pad, soft=soft, aims=self.aims, like=self._like
        )
        if self.teachers is not None:
            name = f"{part}-{number}"
            made.targets = Targets(made, self.teachers).fill(
                self.cache, name, self.recipe.precision
            )
        size = self.pool.sizes(part, batch)[0]
        return [(made, groups) for groups in made.epoch(seed, number, size=size, tokens=None)]

    @cached_property
    def _like(self) -> Batches:
        """All texts on the device, which every round shares."""
        examples, _ = self.pool.draw("rank", 1, 0, 0)
        return Batches(examples, self.device, pad=self.pad)
