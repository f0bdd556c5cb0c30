"""Equal answers become one with its evidence; words that say nothing are no answers.

Comes after scoring, for one engine and for the shards of a cluster alike.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

from decoupled.search.results import Answer, Evidence

_WORDS = """
a an the and or but nor if then than as at by for from in into of off on onto out over per to up
upon via with within without about after before between during since through under until is are
was were be been being am do does did has have had having must shall should would could this that
these those it its their his her our your my he she they we you i them him us me which what whose
whom when where how why there here also so such very just
"""
FILLERS = frozenset(_WORDS.split())
"""Function words: a span of nothing else answers no question. `may` and `will` are names too."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Lower case, without punctuation, articles and surplus blanks (SQuAD's script)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def pool(k: int) -> int:
    """How many spans are looked at for `k` merged answers."""
    return 4 * k + 4


def is_filler(text: str) -> bool:
    """Is it only function words and punctuation? `WHO` and `A` in capitals are names."""
    words = re.findall(r"\w+", text)
    return all(word.lower() in FILLERS and not word.isupper() for word in words)


def merge(answers: Iterable[Answer], k: int) -> list[Answer]:
    """The `k` heaviest different answers: the best span of each, all its places, and their summed weight."""
    groups: dict[str, list[Answer]] = {}
    for answer in sorted(answers, key=lambda answer: -answer.score):
        if not is_filler(answer.text):
            groups.setdefault(normalise_answer(answer.text) or answer.text, []).append(answer)
    return sorted(map(_one, groups.values()), key=lambda answer: -answer.score)[:k]


def _one(equal: Sequence[Answer]) -> Answer:
    evidence = tuple(
        Evidence(**{field.name: getattr(answer, field.name) for field in fields(Evidence)})
        for answer in equal
    )
    return replace(equal[0], score=min(1.0, sum(e.score for e in evidence)), evidence=evidence)
