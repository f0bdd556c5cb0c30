"""Queries as people type them: bare, as keywords, mistyped.

Everything is drawn from a generator that the caller seeds.
"""

from __future__ import annotations

import re
from random import Random

from decoupled.train.data.synthetic import STOPWORDS

_WORD = re.compile(r"[\w'-]+")


def variants(query: str, draw: Random) -> tuple[str, str, str]:
    """The query as it is, as people type it (bare, lower-cased, perhaps its keywords), and mistyped."""
    bare = query.strip().rstrip("?.! ").lower() or query
    plain = keywords(bare) if draw.random() < 0.45 else bare
    return query, plain, mistyped(bare, draw)


def keywords(query: str) -> str:
    """The query without the words that say nothing; as it is, where nothing would be left."""
    kept = [word for word in _WORD.findall(query) if word.lower() not in STOPWORDS]
    return " ".join(kept) or query


def mistyped(text: str, draw: Random) -> str:
    """One or two of the longer words with two letters swapped, one lost, doubled or wrong."""
    words = text.split()
    long = [number for number, word in enumerate(words) if len(word) > 3]
    for number in draw.sample(long, min(len(long), draw.choice((1, 1, 2)))):
        word = words[number]
        at = draw.randrange(1, len(word) - 1)
        words[number] = draw.choice(
            (
                word[:at] + word[at + 1] + word[at] + word[at + 2 :],
                word[:at] + word[at + 1 :],
                word[:at] + word[at] + word[at:],
                word[:at] + draw.choice("abcdefghijklmnopqrstuvwxyz") + word[at + 1 :],
            )
        )
    return " ".join(words)
