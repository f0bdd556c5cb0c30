"""Queries that nobody asked, made from a text that answers them.

Everything is drawn from a generator that the caller seeds, so the same text and seed give the same query.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random

import numpy as np

_STOPWORDS = (
    "a about am an and any are as at be been being but by can could did do does for from had has have he her "
    "his how i if in into is it its may might my no not of on or our she should so such than that the their "
    "then there these they this to was we were what when where which who whom whose why will with would you "
    "your"
)
STOPWORDS = frozenset(_STOPWORDS.split())
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9(\"'])")
_EDGES = ".,;:()\"'?!"
RARE = 12.0
"""Rarity of a word that occurs in none of the counted texts."""


@dataclass(frozen=True)
class SyntheticQuery:
    """A query, and the passage without the sentence that became the query, where one was taken out."""

    query: str
    without: str | None = None


def rarity(texts: Iterable[str]) -> dict[str, float]:
    """Inverse document frequency of each word: the logarithm of how few of the texts hold it."""
    counts: dict[str, int] = {}
    total = 0
    for text in texts:
        total += 1
        for word in words_of(text):
            counts[word] = counts.get(word, 0) + 1
    return {word: float(np.log(total / count)) for word, count in counts.items()}


def query_from(
    text: str, title: str, draw: Random, rare: Mapping[str, float] = {}
) -> SyntheticQuery | None:
    """A query that the text answers: a sentence, a span, keywords or its title; None for a short text."""
    words, sentences = text.split(), sentences_of(text)
    ways: list[Callable[[], SyntheticQuery | None]] = []
    if len(sentences) >= 3:
        # Repeated entries are weights: sentences are drawn most often, titles least.
        ways += [lambda: _sentence(sentences, draw)] * 4
    if len(words) >= 12:
        ways += [lambda: _span(words, draw)] * 2
        ways += [lambda: _keywords(text, draw, rare)] * 3
    if len(title) > 3:
        ways.append(lambda: _title(title, words, draw))
    draw.shuffle(ways)
    return next((synthetic for way in ways if (synthetic := way()) is not None), None)


def _sentence(sentences: list[str], draw: Random) -> SyntheticQuery | None:
    """A sentence as the query; three times in four it is cut from its passage, so its words do not match."""
    number = draw.randrange(len(sentences))
    words = sentences[number].split()
    if len(words) < 4:
        return None
    rest = " ".join(sentences[:number] + sentences[number + 1 :])
    # A passage of fewer than nine words is too short to be recognised.
    removed = draw.random() < 0.75 and len(rest.split()) > 8
    return SyntheticQuery(" ".join(words[:30]), rest if removed else None)


def _span(words: list[str], draw: Random) -> SyntheticQuery:
    size = draw.randint(4, 10)
    start = draw.randrange(len(words) - size)
    return SyntheticQuery(" ".join(words[start : start + size]))


def _keywords(text: str, draw: Random, rare: Mapping[str, float]) -> SyntheticQuery | None:
    """The rarest words half of the time, else some of the twenty rarest."""
    keywords = sorted(words_of(text) - STOPWORDS)
    if len(keywords) < 5:
        return None
    # Some noise, so that one text gives different keywords under different seeds.
    keywords.sort(key=lambda word: -rare.get(word, RARE) - 2 * draw.random())
    if draw.random() < 0.5:
        chosen = keywords[: draw.randint(3, 6)]
    else:
        chosen = draw.sample(keywords[:20], min(len(keywords), draw.randint(2, 6)))
    draw.shuffle(chosen)
    return SyntheticQuery(" ".join(chosen))


def _title(title: str, words: list[str], draw: Random) -> SyntheticQuery:
    return SyntheticQuery(
        f"{title} {draw.choice(words)}" if words and draw.random() < 0.5 else title
    )


def sentences_of(text: str) -> list[str]:
    """The text cut after full stops, question marks and exclamation marks."""
    return [part for part in _SENTENCE_END.split(text) if part.strip()]


def words_of(text: str) -> set[str]:
    """The distinct words of a text, lower-cased and without punctuation."""
    return {word.strip(_EDGES).lower() for word in text.split()} - {""}
