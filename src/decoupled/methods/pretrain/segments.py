"""Stretches of a corpus for pre-training: one text, or two that follow one another, or do not.

A stretch is a start and a length in the tokens of the corpus, so an epoch is a table of numbers. Everything
is drawn from a generator that the caller seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from decoupled.errors import InputError
from decoupled.methods.pretrain.corpus import Corpus, Places

SHORTER = 0.1
"""Share of the pairs that are made shorter than there is room for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Segments:
    """Texts of one stretch or of two, with the label of each pair."""

    corpus: Corpus
    rows: Places
    """`[N,4]` start and length of the first stretch, and of the second (length 0 where there is none)."""
    label: Places

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, which: Places) -> Segments:
        """Some of the segments, in that order."""
        return replace(self, rows=self.rows[which], label=self.label[which])

    @property
    def lengths(self) -> Places:
        """The number of tokens of both stretches."""
        return self.rows[:, 1] + self.rows[:, 3]


Builder = Callable[[Corpus, int, np.random.Generator], Segments]
"""Cuts a corpus into segments within so many tokens."""


def texts(corpus: Corpus, room: int, draw: np.random.Generator) -> Segments:
    """Every document once, in stretches of whole sentences; where the first one ends is drawn."""
    rows = []
    for first, last in _bounds(corpus):
        # The first cut is random, so that other sentences meet in each epoch.
        target = int(draw.integers(room // 2, room + 1))
        while first < last:
            end = _filled(corpus, first, last, target)
            start = int(corpus.sentences[first])
            rows.append((start, min(int(corpus.sentences[end]) - start, room), 0, 0))
            first, target = end, room
    return Segments(corpus=corpus, rows=np.asarray(rows), label=np.zeros(len(rows), np.int64))


def following(corpus: Corpus, room: int, draw: np.random.Generator) -> Segments:
    """NSP: 0 where the second stretch follows the first, 1 where it is of another document."""
    return _pairs(corpus, room, draw, lambda: (0, 1)[draw.random() < 0.5], other=1, swapped=-1)


def ordered(corpus: Corpus, room: int, draw: np.random.Generator) -> Segments:
    """SOP: 0 where two stretches that follow one another are in order, 1 where they are swapped."""
    return _pairs(corpus, room, draw, lambda: (0, 1)[draw.random() < 0.5], other=-1, swapped=1)


def three_ways(corpus: Corpus, room: int, draw: np.random.Generator) -> Segments:
    """StructBERT: 0 where the second stretch follows, 1 where it comes before, 2 of another document."""
    return _pairs(corpus, room, draw, lambda: int(draw.integers(3)), other=2, swapped=1)


def _pairs(
    corpus: Corpus,
    room: int,
    draw: np.random.Generator,
    label_of: Callable[[], int],
    *,
    other: int,
    swapped: int,
) -> Segments:
    """Consecutive sentences cut in two; by its label a pair is swapped, or has its end from elsewhere.

    Sentences that an end from elsewhere takes the place of are used again. Those that stand alone are left
    out: only an end from elsewhere could follow them, which would give the label away.
    """
    if len(corpus) < 2 and other >= 0:
        raise InputError(
            "the corpus is one document, and pairs need texts of others; give more, or use the objective sop"
        )
    rows, labels = [], []
    bounds = list(_bounds(corpus))
    for number, (first, last) in enumerate(bounds):
        while last - first > 1:
            target = room if draw.random() >= SHORTER else int(draw.integers(2, room + 1))
            end = max(_filled(corpus, first, last, target), first + 2)
            cut = int(draw.integers(first + 1, end))
            # Sentences `first..cut` are one text, `cut..end` the other.
            label, ahead = label_of(), (cut, end)
            if label == other:
                # Any document but this one: numbers from its own on move up by one.
                elsewhere = int(draw.integers(len(bounds) - 1))
                begin, stop = bounds[elsewhere + (elsewhere >= number)]
                begin = int(draw.integers(begin, stop))
                left = target - int(corpus.sentences[cut] - corpus.sentences[first])
                ahead, end = (begin, _filled(corpus, begin, stop, left)), cut
            pair = _fitted(corpus, (first, cut), ahead, room, draw)
            rows.append(pair[2:] + pair[:2] if label == swapped else pair)
            labels.append(label)
            first = end
    if not rows:
        raise InputError(
            "no document has two sentences, which pairs of texts are made of; use the objective mlm, electra "
            "or wklm"
        )
    return Segments(corpus=corpus, rows=np.asarray(rows), label=np.asarray(labels))


def _bounds(corpus: Corpus) -> Iterator[tuple[int, int]]:
    """First sentence of each document, and the one after its last."""
    listed = corpus.documents.tolist()
    return pairwise(listed)


def _filled(corpus: Corpus, first: int, last: int, room: int) -> int:
    """The sentence after those that fill so many tokens; at least one is taken."""
    limit = corpus.sentences[first] + room
    end = int(np.searchsorted(corpus.sentences[first : last + 1], limit, side="right")) - 1
    return first + max(1, end)


def _fitted(
    corpus: Corpus, one: tuple[int, int], two: tuple[int, int], room: int, draw: np.random.Generator
) -> tuple[int, int, int, int]:
    """Both stretches within the room: the longer one gives way, at its front or its end by chance."""
    bounds = []
    sizes = [int(corpus.sentences[end] - corpus.sentences[start]) for start, end in (one, two)]
    short = max(min(sizes), 1)
    kept = (
        sizes if sum(sizes) <= room else [min(size, max(room - short, room // 2)) for size in sizes]
    )
    for (start, _), size, keep in zip((one, two), sizes, kept, strict=True):
        # Binomial with chance 1/2: each surplus token goes from the front or the end (BERT).
        shift = int(draw.binomial(size - keep, 0.5)) if size > keep else 0
        bounds += [int(corpus.sentences[start]) + shift, keep]
    return bounds[0], bounds[1], bounds[2], bounds[3]
