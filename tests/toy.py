"""Small learnable data for the training tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from mixture import Dataset

from decoupled.measure.pairs import Pair, Span
from decoupled.model.tokens import Passage

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


MORE = ("old", "stone", "great", "small", "north", "south", "built", "fell", "burned", "wide")


def word_passages(count: int = 80, words: int = 16) -> list[Passage]:
    """Words in a row, each passage with a title."""
    draw = random.Random(0)
    made = []
    for number in range(count):
        text = " ".join(draw.choice((*PLACES, *MORE)) for _ in range(words))
        made.append(Passage(id=str(number), text=text, title=draw.choice(PLACES)))
    return made


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


def reader_sets() -> list[Dataset]:
    """A reading set with questions that have no answer, pairs with titles, and passages alone."""
    draw = random.Random(5)
    reading, pairs, alone = [], [], []
    for number in range(20):
        a, b, c, d = draw.sample(PLACES, 4)
        text = f"The {a} stands beside the old {b}. Nobody saw the {c} before. It rains on day {number}."
        span = Span(text=b, start=text.index(b, 10))
        asked = f"What stands beside the {a} on day {number}?"
        common = {"passage": text, "title": f"Day {number}"}
        reading.append(
            Pair(query=asked, answers=(span,), id=f"a{number}", group=f"a{number}", **common)
        )
        if number % 4 == 0:
            silent = f"What stands beside the {d} on day {number}?"
            reading.append(Pair(query=silent, id=f"n{number}", group=f"n{number}", **common))
        story = f"A ship came from the {c}. The king of tale {number} lost his {d}. They sang of the {a}."
        title = f"Tale {number}" if number % 2 else ""
        pairs.append(Pair(query=f"tale {number} of the {d}", passage=story, title=title))
        lone = f"Row {number} of the {b} wall is made of stone. It fell. The {a} was built again later."
        alone.append(Passage(id=str(number), text=lone))
    return [
        Dataset(name="reading", pairs=reading),
        Dataset(name="pairs", pairs=pairs),
        Dataset(name="alone", passages=alone),
    ]
