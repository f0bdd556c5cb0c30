"""Pseudo-relevance feedback: which candidates share words with those that the first stage thinks most of."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from decoupled.model.scoring import Floats

WORD = re.compile(r"\w+")
STEM = 5
"""Letters by which words are the same: most endings come later."""
SATURATION, LENGTH = 1.2, 0.75
"""BM25's k1 and b."""


def shared_words(texts: Sequence[str], documents: Sequence[str], scores: Floats) -> Floats:
    """How alike each text is to those of other documents, of which each weighs as the softmax of its score.

    Words count as in BM25, and as rare as they are among these texts: what all of them say tells nothing.
    A document repeats itself, so what its own other passages say is no reason to believe it.
    """
    known: dict[str, int] = {}
    said = [
        [known.setdefault(w[:STEM], len(known)) for w in WORD.findall(t.lower())] for t in texts
    ]
    lengths, size = np.asarray([len(words) for words in said]), max(1, len(known))
    words = np.asarray([word for own in said for word in own], np.int64)
    places = np.repeat(np.arange(len(texts)), lengths) * size + words
    places, count = np.unique(places, return_counts=True)
    text, word = np.divmod(places, size)
    texts_with = np.bincount(word, minlength=size)
    rarity = np.log1p((len(texts) - texts_with + 0.5) / (texts_with + 0.5))
    long = 1 - LENGTH + LENGTH * lengths / max(1.0, float(lengths.mean()))
    weight = rarity[word] * count / (count + SATURATION * long[text])
    shares = np.exp(scores - scores.max())
    given = weight * (shares / shares.sum())[text]
    number = np.unique(np.asarray(documents), return_inverse=True)[1]
    own = np.unique(number[text] * size + word, return_inverse=True)[1]
    heard = np.bincount(word, given, minlength=size)[word] - np.bincount(own, given)[own]
    return np.bincount(text, weight * heard, minlength=len(texts)).astype(np.float64)
