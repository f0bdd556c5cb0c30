"""Groups drawn from a mixture: a query with a passage that answers it, and negatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from mixture import Asked, Kind, Mixture
from reader_recipe import Sampling
from variants import variants

from decoupled.model.states import Ragged
from decoupled.model.tokens import Tokenizer, Window, as_sentence
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import span_rows
from decoupled.train.losses import UNLABELLED

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Part = Literal["read", "rank"]

PAIR = 2
"""Passages of a question to read."""
WINDOWS = 4
"""Of a long text, its first ones; an answer beyond them is not learned from."""
FORMS = 3
"""Of each query: as it is, bare, mistyped."""
CERTAIN = 0.85
"""Share of the retriever's cosines in the target of a query that was made of its text."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Windows of all texts, plain and with their titles before them."""

    ids: Ragged
    first: Ints
    """`[2,texts]` first window of each text, plain and titled; the same where it has no title."""
    count: Ints
    """`[2,texts]` how many windows."""
    windows: Sequence[Window]
    shown: Sequence[str]
    """What each window says, its title with it where it is read with one."""

    @classmethod
    def of(cls, mixture: Mixture, tokenizer: Tokenizer) -> Texts:
        """Tokenised as an index does."""
        texts, titles = [p.text for p in mixture.texts], [p.title for p in mixture.texts]
        named = [number for number, title in enumerate(titles) if title.strip()]
        plain = tokenizer.windows(texts)
        full = tokenizer.windows([texts[n] for n in named], [titles[n] for n in named])
        flat = [window for windows in plain for window in windows[:WINDOWS]]
        shown = [window.text for window in flat]
        sizes = np.asarray([len(windows[:WINDOWS]) for windows in plain], np.int64)
        first, count = np.stack([np.cumsum(sizes) - sizes] * 2), np.stack([sizes] * 2)
        for number, windows in zip(named, full, strict=True):
            kept = windows[:WINDOWS]
            first[1, number], count[1, number] = len(flat), len(kept)
            flat += kept
            shown += [f"{as_sentence(titles[number])} {window.text}" for window in kept]
        return cls(Ragged.stack([window.ids for window in flat]), first, count, flat, shown)

    def answer(self, asked: Asked, place: int, title: int) -> tuple[int, int, int]:
        """The window of one of the query's own texts that answers it, and the rows of start and end."""
        number, span = asked.own[place], asked.spans[place]
        first = int(self.first[title, number])
        if asked.kind == Kind.UNANSWERABLE:
            return first, 0, 0
        for window in range(first, first + int(self.count[title, number])):
            if span and (found := span_rows(span.start, len(span.text), self.windows[window])):
                return window, *found
        return first, UNLABELLED, UNLABELLED


class Pool:
    """Tables of a mixture to draw groups from: every choice is a few array operations."""

    def __init__(
        self,
        mixture: Mixture,
        tokenizer: Tokenizer,
        sampling: Sampling,
        *,
        seed: int = 0,
    ) -> None:
        self.mixture, self.sampling, asked = mixture, sampling, mixture.asked
        self.negatives: npt.NDArray[np.integer[Any]] = np.zeros((len(asked), 0), np.int64)
        """`[queries,columns]` texts that were mined, -1 where there are no more."""
        self.texts = Texts.of(mixture, tokenizer)
        draw = Random(seed)
        self.forms = [form for one in asked for form in variants(one.query, draw)]
        self.queries = Ragged.stack(tokenizer.queries(self.forms))
        self.kind = np.asarray([a.kind for a in asked], np.int64)
        self.reads = np.asarray([a.reads for a in asked])
        self.weight = np.asarray([a.weight for a in asked])
        self.train = np.asarray([not a.held for a in asked])
        sizes = np.asarray([len(a.own) for a in asked], np.int64)
        self.own_first, self.own_count = np.cumsum(sizes) - sizes, sizes
        self.own_text = np.asarray([n for a in asked for n in a.own], np.int64)
        self.answers = np.asarray(
            [
                [self.texts.answer(a, place, title) for title in (0, 1)]
                for a in asked
                for place in range(len(a.own))
            ],
            np.int64,
        )
        total = len(mixture.texts)
        barred = [n * total + text for n, a in enumerate(asked) for text in mixture.barred(a)]
        self._barred = np.unique(np.asarray(barred, np.int64))
        self._origin = np.asarray(mixture.origin, np.int64)

    @cached_property
    def parts(self) -> dict[Part, Ints]:
        """The queries that are read, and those that are ranked and not made of texts."""
        read = np.flatnonzero(self.train & self.reads & (self.weight > 0))
        rank = np.flatnonzero(self.train & (self.kind != Kind.SYNTHETIC) & (self.weight > 0))
        return {"read": read, "rank": rank}

    @cached_property
    def synthetic(self) -> Ints:
        """Those made of texts."""
        return np.flatnonzero(self.train & (self.kind == Kind.SYNTHETIC))

    def sizes(self, part: Part, batch: int) -> tuple[int, int]:
        """Groups of a batch, and passages of a group."""
        return (self.sampling.read, PAIR) if part == "read" else (batch, self.sampling.passages)

    def steps(self, batch: int) -> int:
        """Batches of each kind in an epoch: as many as the larger of them needs."""
        read = -(-len(self.parts["read"]) // self.sampling.read)
        rank = -(-max(len(self.parts["rank"]), len(self.synthetic)) // batch)
        return min(self.sampling.steps, max(read, rank, 1))

    def draw(self, part: Part, batch: int, number: int, seed: int) -> tuple[Examples, Floats]:
        """The groups of a round, and the share of soft targets in each."""
        draw = np.random.default_rng([seed, number, part == "read"])
        size, width = self.sizes(part, batch)
        asked = self._queries(part, self.steps(batch) * size, draw)
        title = (draw.random(len(asked)) < self.sampling.titled).astype(np.int64)
        own = self.own_first[asked] + (draw.random(len(asked)) * self.own_count[asked]).astype(
            np.int64
        )
        right = self.answers[own, title]
        others = self._negatives(asked, self.own_text[own], width - 1, draw)
        sizes = self.texts.count[title[:, None], others]
        window = self.texts.first[title[:, None], others]
        window = window + (draw.random(others.shape) * sizes).astype(np.int64)
        label = np.full((len(asked), width, 2), UNLABELLED, np.int64)
        label[:, 0] = right[:, 1:]
        label[self.reads[asked], 1:] = 0
        label[:, 1:][self._answered(asked, others)] = UNLABELLED
        noise = self.sampling.noise * (0.4 if part == "read" else 1.0)
        form = draw.choice(FORMS, len(asked), p=[1 - noise, noise * 0.6, noise * 0.4])
        return self._examples(
            asked * FORMS + form, np.column_stack([right[:, 0], window]), label
        ), self._soft(asked)

    def _queries(self, part: Part, count: int, draw: np.random.Generator) -> Ints:
        """Every query of a part as often as its weight says, over and over until there are enough."""
        made = int(count * self.sampling.synthetic) if part == "rank" and len(self.synthetic) else 0
        if not len(self.parts[part]):
            made = count
        found = [
            self._passes(self.parts[part], count - made, draw),
            self._passes(self.synthetic, made, draw),
        ]
        return draw.permutation(np.concatenate(found))

    def _passes(self, rows: Ints, count: int, draw: np.random.Generator) -> Ints:
        found = np.zeros(0, np.int64)
        while len(found) < count:
            whole, rest = np.divmod(self.weight[rows], 1)
            times = whole.astype(np.int64) + (draw.random(len(rows)) < rest)
            found = np.concatenate([found, draw.permutation(np.repeat(rows, times))])
        return found[:count]

    def _negatives(self, asked: Ints, own: Ints, count: int, draw: np.random.Generator) -> Ints:
        """Mostly mined ones; a quarter, and what is missing, are any other texts."""
        mined = self.negatives[asked].astype(np.int64)
        order = np.where(mined >= 0, draw.random(mined.shape), 2.0).argsort(1)
        hard = np.take_along_axis(mined, order, 1)[:, : max(1, count - count // 4)]
        total = len(self.mixture.texts)
        found = np.full((len(asked), count), -1, np.int64)
        found[:, : hard.shape[1]] = hard
        for _ in range(20):
            empty = found < 0
            if not empty.any():
                break
            found[empty] = draw.integers(total, size=int(empty.sum()))
            again = np.isin(asked[:, None] * total + self._origin[found], self._barred)
            found[empty & again] = -1
        return np.where(found < 0, (own[:, None] + 1) % total, found)

    def _answered(self, asked: Ints, others: Ints) -> npt.NDArray[np.bool_]:
        """Passages that hold an answer by chance: whether they answer is not known."""
        texts, known = self.mixture.lowered, self.mixture.asked
        return np.asarray(
            [
                [any(answer in texts[n] for answer in known[a].answers) for n in row]
                for a, row in zip(asked.tolist(), others.tolist(), strict=True)
            ]
        )

    def _soft(self, asked: Ints) -> Floats:
        share = {Kind.LABELLED: self.sampling.soft, Kind.SYNTHETIC: CERTAIN, Kind.UNANSWERABLE: 1.0}
        return np.asarray([share[Kind(kind)] for kind in self.kind[asked]], np.float32)

    def _examples(self, query: Ints, window: Ints, label: Ints) -> Examples:
        width = window.shape[1]
        group = np.repeat(np.arange(len(query), dtype=np.int32), width)
        return Examples(
            queries=self.queries,
            passages=self.texts.ids,
            query_of=np.repeat(query, width).astype(np.int32),
            passage_of=window.reshape(-1).astype(np.int32),
            label=label.reshape(-1, 2).astype(np.int32),
            score=np.tile(np.arange(width) == 0, len(query)).astype(np.float32),
            question=group,
            part=group,
            per_group=width,
            share="query",
        )
