"""Small learnable data for the training tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from decoupled.index.documents import Pair, Span

PLACES = (
    "river",
    "castle",
    "king",
    "bridge",
    "moon",
    "star",
    "ship",
    "tower",
    "wall",
    "lake",
    "forest",
    "island",
)


def span_pairs(count: int = 48, seed: int = 0) -> list[Pair]:
    """Where a word stands: the query names it, the passage holds it once."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        words = draw.sample(PLACES, 4)
        answer = draw.choice(words)
        passage = " ".join(words)
        span = Span(text=answer, start=passage.index(answer))
        made.append(
            Pair(query=answer, passage=passage, answers=(span,), id=str(number), group=str(number))
        )
    return made


def class_pairs(count: int = 64, seed: int = 0) -> list[Pair]:
    """Yes when the query's word begins the passage; both texts vary."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        word, other = draw.sample(PLACES[:4], 2)
        same = number % 2
        made.append(
            Pair(
                query=word,
                passage=word if same else other,
                label=("no", "yes")[same],
                id=str(number),
                group=str(number),
            )
        )
    return made


def named_pairs(labels: Sequence[str], count: int = 12) -> list[Pair]:
    """Pairs whose classes have the names of a head, each in turn."""
    pairs = class_pairs(count)
    return [replace(pair, label=labels[n % len(labels)]) for n, pair in enumerate(pairs)]
