"""Pseudo-relevance feedback: which candidates share words with those that the first stage thinks most of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from decoupled.model.scoring import Floats

STEM = 5
"""Letters by which words are the same: most endings come later."""
SATURATION, LENGTH = 1.2, 0.75
"""BM25's k1 and b."""


def shared_words(texts: Sequence[str], documents: Sequence[str], scores: Floats) -> Floats:
    """How alike each text is to those of other documents, of which each weighs as the softmax of its score.

    Words count as in BM25, and as rare as they are among these texts: what all of them say tells nothing.
    A document repeats itself, so what its own other passages say is no reason to believe it.
    """
    words, lengths = stems(texts)
    size = int(words.max(initial=0)) + 1
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


def stems(texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A number for the stem of each word of all texts in turn, from 0, and how many words each text has.

    Words are runs of letters, digits and underscores, as in a regular expression, in lower case. They are cut
    in one array of characters: a hundred texts have tens of thousands of them.
    """
    lower = [text.lower() for text in texts]
    # Every text ends with a character that is of no word; lone surrogates are characters too.
    whole = "".join(f"{text}\n" for text in lower).encode("utf-32-le", "surrogatepass")
    characters = np.frombuffer(whole, np.uint32)
    known = np.zeros(int(characters.max(initial=0)) + 1, np.int64)
    known[characters] = 1
    every = np.flatnonzero(known)
    known[every] = [chr(c).isalnum() or c == ord("_") for c in every.tolist()]
    known[known > 0] = np.arange(1, known.sum() + 1)
    letters = np.append(known[characters], np.zeros(STEM, np.int64))
    first = np.flatnonzero((letters[:-1] > 0) & (np.append(0, letters[:-2]) == 0))
    base, number = int(known.max()) + 1, letters[first]
    inside = np.ones(len(first), np.bool_)
    for place in range(1, STEM):
        letter = letters[first + place]
        inside &= letter > 0
        if base**STEM > np.iinfo(np.int64).max:  # more characters than most scripts have
            number = np.unique(number, return_inverse=True)[1]
        number = number * base + letter * inside
    ends = np.cumsum([len(text) + 1 for text in lower])
    counts = np.diff(np.searchsorted(first, ends), prepend=0)
    return np.unique(number, return_inverse=True)[1], counts
