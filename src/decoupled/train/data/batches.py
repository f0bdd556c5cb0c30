"""Batches by gather on the device: no loader, no copy from the host but one list of rows per epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoupled.model.spec import ModelSpec
from decoupled.model.states import Ragged
from decoupled.train.data.examples import Examples

POOL = 64
"""The number of batches among which texts are sorted by length; more pads less and mixes less."""
ROUND = 8
"""Padded widths are multiples of this, which suits the matrix units of processors."""

Groups = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Pairs on a device. A side that the pairs of a group share is held once and repeated after encoding."""

    query_ids: Tensor
    query_real: Tensor
    passage_ids: Tensor
    passage_real: Tensor
    label: Tensor
    """`[B,2]`: start and end rows of a span, or a class, an option or a grade, and 0."""
    score: Tensor
    """`[B]` scores to imitate, where the data have them."""
    rows: Tensor
    """`[B]` the number of the example that each pair is."""
    per_group: int = 1
    query_repeat: int = 1
    passage_repeat: int = 1
    number: int = 0
    """The number of the step in the run; it seeds what the step draws at random."""
    earlier_ids: Tensor | None = None
    """`[W,B,P]` windows before the passages, the last one first, for a model with a memory of them."""
    earlier_real: Tensor | None = None
    linked: Tensor | None = None
    """`[B,per_group]`: which pairs of its group each pair hears in a hop; None is all of them."""
    tokens: int | None = None
    """The `real_tokens` where they are known, so that nobody waits for a GPU to count."""

    @property
    def real(self) -> tuple[Tensor, Tensor]:
        """Masks `[B,Q]` and `[B,P]` of the pairs."""
        return (
            repeated(self.query_real, self.query_repeat),
            repeated(self.passage_real, self.passage_repeat),
        )

    @property
    def real_tokens(self) -> int:
        """How many tokens of the pairs are real."""
        return sum(int(real.sum()) for real in self.real) if self.tokens is None else self.tokens

    @property
    def links(self) -> Tensor | None:
        """`[B,B]`: which other passages of its query each pair hears, for hops between them."""
        # A passage that all pairs share has no other passages to hear.
        if self.per_group == 1 or self.passage_repeat > 1:
            return None
        group_B = torch.arange(len(self.label), device=self.label.device) // self.per_group
        own = torch.eye(len(group_B), dtype=torch.bool, device=group_B.device)
        there = ~own if self.linked is None else self.linked.repeat(1, len(own) // self.per_group)
        return (group_B[:, None] == group_B) & there

    @property
    def span_real(self) -> Tensor:
        """`[B,1+P]`: which rows of span logits are real, no-answer included."""
        real = self.real[1]
        return torch.cat([torch.ones_like(real[:, :1]), real], 1)


def repeated(x: Tensor, times: int) -> Tensor:
    """Each row of `x` repeated `times` times in a row."""
    return x if times == 1 else x.repeat_interleave(times, 0)


class Feed(Protocol):
    """A source of batches for the training loop."""

    @property
    def device(self) -> torch.device:
        """The device of the batches."""

    def epoch(self, seed: int, number: int, *, size: int, tokens: int | None) -> list[Any]:
        """The batches of an epoch in the form that `walk` takes, in an order that seed and number decide."""

    def walk(self, batches: list[Any], first: int = 0) -> Iterator[Batch]:
        """The batches as tensors; `first` numbers the first of them."""

    def tokens(self, groups: Any) -> int:
        """The number of real tokens of one batch, for rates."""


class _Texts:
    """Ragged token ids on the device."""

    def __init__(self, texts: Ragged, device: torch.device) -> None:
        values = np.ascontiguousarray(texts.values).astype(np.int32)
        self.values, self.starts, self.lengths = (
            torch.from_numpy(array).to(device) for array in (values, texts.starts, texts.lengths)
        )

    def gather(self, which: Tensor, width: int, pad: int) -> tuple[Tensor, Tensor]:
        """`ids[B,width]` and `real[B,width]` of the given texts."""
        place = torch.arange(width, device=which.device)
        real = place < self.lengths[which][:, None]
        # Padding may point past the last text; what it reads is replaced by the padding id.
        index = (self.starts[which][:, None] + place).clamp(max=len(self.values) - 1)
        return torch.where(real, self.values[index].long(), pad), real


class Batches:
    """All examples on one device, cut into batches.

    With `like`, the texts of other batches are shared, where the examples are other pairs of the same texts.
    """

    def __init__(
        self,
        examples: Examples,
        device: torch.device,
        *,
        pad: int,
        like: Batches | None = None,
        memory_windows: int = 0,
    ) -> None:
        self.examples, self.device, self.pad = examples, device, pad
        self._queries: _Texts = like._queries if like else _Texts(examples.queries, device)
        self._passages: _Texts = like._passages if like else _Texts(examples.passages, device)
        self._query_of, self._passage_of, self._label, self._score = (
            torch.from_numpy(array).to(device)
            for array in (examples.query_of, examples.passage_of, examples.label, examples.score)
        )
        links = examples.links
        self._links = None if links is None else torch.from_numpy(links).to(device)
        shape = (examples.groups, examples.per_group)
        queries = examples.queries.lengths[examples.query_of].reshape(shape)
        passages = examples.passages.lengths[examples.passage_of].reshape(shape)
        self.query_lengths, self.passage_lengths = queries.max(1), passages.max(1)
        self._number, self._earlier = torch.zeros(0), np.zeros(len(passages), np.int64)
        if memory_windows:
            number_P = examples.window_numbers
            mine = number_P[examples.passage_of]
            self._number = torch.from_numpy(number_P).to(device)
            self._earlier = mine.reshape(shape).max(1).clip(max=memory_windows)
            # The window before one is at least as long: all but the last of a text are full.
            before = examples.passages.lengths[examples.passage_of - (mine > 0)].reshape(shape)
            self.passage_lengths = np.maximum(self.passage_lengths, before.max(1))
        self._real_pairs = queries.sum(1) + passages.sum(1)
        self._real = _once(queries, examples.share == "query")
        self._real += _once(passages, examples.share == "passage")
        # Ceiling divisions: the sum of both padded widths, in units of ROUND.
        padded = -(-self.query_lengths // ROUND) - (-self.passage_lengths // ROUND)
        self._sizes = padded * ROUND * examples.per_group

    @classmethod
    def of(cls, examples: Examples, spec: ModelSpec, device: torch.device) -> Batches:
        """The examples as a model of that spec reads them."""
        return cls(examples, device, pad=spec.text.pad, memory_windows=spec.memory_windows)

    def epoch(self, seed: int, number: int, *, size: int, tokens: int | None) -> list[Groups]:
        """Every group once, in batches of like lengths, in an order that seed and number decide."""
        # Seeded by epoch, so that a run that goes on from a checkpoint sees the same order.
        draw = np.random.default_rng([seed, number])
        order = draw.permutation(self.examples.groups)
        longest = int(self._sizes.max(initial=0)) or 1
        # Sorting only within pools keeps batches of like lengths without losing the random order.
        pool = POOL * (size if tokens is None else max(1, tokens // longest))
        batches: list[Groups] = []
        for start in range(0, len(order), pool):
            batches += self._cut(order[start : start + pool], size, tokens)
        return [batches[i] for i in draw.permutation(len(batches))]

    def ordered(self, tokens: int, groups: Groups | None = None) -> list[Groups]:
        """Every group once, or the given ones, longest first, for evaluation."""
        groups = np.arange(self.examples.groups) if groups is None else groups
        return self._cut(groups, len(self.query_lengths), tokens)

    def _cut(self, groups: Groups, size: int, tokens: int | None) -> list[Groups]:
        """Groups sorted by length, in batches of `size` or within about a budget of padded tokens."""
        lengths = self._sizes[groups]
        order = np.argsort(-lengths, kind="stable")
        groups, lengths = groups[order], lengths[order]
        batches, start = [], 0
        while start < len(groups):
            step = size if tokens is None else max(1, tokens // max(1, int(lengths[start])))
            batches.append(groups[start : start + step])
            start += step
        return batches

    def walk(self, batches: list[Groups], first: int = 0) -> Iterator[Batch]:
        """The batches as tensors; `first` numbers the first of them."""
        if not batches:
            return
        # One copy to the device per epoch; the batches are slices of it.
        flat = torch.from_numpy(np.concatenate(batches)).to(self.device)
        start = 0
        for shift, groups in enumerate(batches):
            rows = flat[start : start + len(groups)]
            start += len(groups)
            longest = (self.query_lengths[groups].max(), self.passage_lengths[groups].max())
            # Ceilings to a multiple of ROUND.
            query, passage = (-(-int(length) // ROUND) * ROUND for length in longest)
            real = int(self._real_pairs[groups].sum())
            batch = replace(self.build(rows, (query, passage), first + shift), tokens=real)
            steps = int(self._earlier[groups].max())
            yield self._with_earlier(batch, passage, steps) if steps else batch

    def build(self, groups_G: Tensor, widths: tuple[int, int], number: int = 0) -> Batch:
        """One batch of the given groups, padded to the given widths."""
        per_group, share = self.examples.per_group, self.examples.share
        # A group's first pair stands for the side that all of its pairs share.
        heads = groups_G * per_group
        rows = (heads[:, None] + torch.arange(per_group, device=self.device)).reshape(-1)
        queries = self._query_of[heads if share == "query" else rows]
        passages = self._passage_of[heads if share == "passage" else rows]
        query_ids, query_real = self._queries.gather(queries, widths[0], self.pad)
        passage_ids, passage_real = self._passages.gather(passages, widths[1], self.pad)
        return Batch(
            query_ids=query_ids,
            query_real=query_real,
            passage_ids=passage_ids,
            passage_real=passage_real,
            label=self._label[rows],
            score=self._score[rows],
            rows=rows,
            per_group=per_group,
            query_repeat=per_group if share == "query" else 1,
            passage_repeat=per_group if share == "passage" else 1,
            linked=None if self._links is None else self._links[rows],
            number=number,
        )

    def _with_earlier(self, batch: Batch, width: int, steps: int) -> Batch:
        """A batch with the windows before its passages, up to so many."""
        windows_B = self._passage_of[batch.rows[:: batch.passage_repeat]]
        back_WB = torch.arange(1, steps + 1, device=self.device)[:, None]
        there_WB = self._number[windows_B] >= back_WB
        # Windows of a text are neighbours, so the window before is the passage before.
        which = (windows_B - back_WB).clamp(min=0).flatten()
        ids, real = (
            x.view(steps, -1, width) for x in self._passages.gather(which, width, self.pad)
        )
        return replace(batch, earlier_ids=ids, earlier_real=real & there_WB[..., None])

    def tokens(self, groups: Groups) -> int:
        """Real tokens of a batch, for rates; a text that its group shares counts once."""
        return int(self._real[groups].sum())


def _once(lengths_GP: npt.NDArray[np.int64], shared: bool) -> npt.NDArray[np.int64]:
    """Tokens of each group on one side; a text that the group shares counts once."""
    return (lengths_GP[:, :1] if shared else lengths_GP).sum(1)
