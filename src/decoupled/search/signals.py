"""Signals that a search may add to rank logits beside BM25 and the cosine; each has a weight in `Scoring`.

Every signal is a function from what is known of the candidates to one number for each of them. `add_signals`
is the only place that uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from decoupled.index.record import Excerpt
from decoupled.index.store.base import Rows, Snapshot
from decoupled.model.scoring import Floats, Scoring
from decoupled.search.first_stage import standardised
from decoupled.search.late_interaction import finite
from decoupled.search.request import CANDIDATES, LateScores

SHARPNESS = 8.0
"""Inverse temperature of the cosines between candidates."""
STEM = 5
"""Letters by which words are the same: most endings come later."""
SATURATION, LENGTH = 1.2, 0.75
"""BM25's k1 and b."""
SIZE = 2000
"""Passages of a sample, at equal distances."""
NEAREST = 20
"""Passages of the sample by which hubness is measured."""


@dataclass(frozen=True, eq=False)
class Sample:
    """A version of an index and some of its passages, which are read when hubness is first asked for."""

    snapshot: Snapshot

    def of(self, snapshot: Snapshot) -> Sample:
        """This sample, or a new one where the index has changed."""
        return self if self.snapshot.version == snapshot.version else Sample(snapshot)

    @cached_property
    def rows(self) -> Rows:
        """Rows of the passages of the sample."""
        every = self.snapshot.rows()
        return every[:: -(-len(every) // SIZE)] if len(every) else every

    @cached_property
    def directions(self) -> Floats:
        """Their vectors, of length 1."""
        return directions(self.snapshot.vectors(self.rows))


def add_signals(
    prior: Floats, scoring: Scoring, rows: Rows, late: LateScores, sample: Sample
) -> Floats:
    """The prior with every signal that has a weight, in standard deviations over the first candidates.

    `rows` are the candidates, best first, `prior` is what BM25 and the cosine add to their rank logits, and
    `late` are their scores by late interaction, empty for a model that has not learnt it.
    """
    snapshot = sample.snapshot
    signals: tuple[tuple[float, Callable[[], Floats]], ...] = (
        (scoring.neighbours, lambda: neighbours(snapshot.vectors(rows), prior)),
        (scoring.feedback, lambda: feedback(snapshot.texts(rows), prior)),
        (scoring.crowding, lambda: -hubness(rows, snapshot.vectors(rows), sample)),
        (scoring.late if len(late) else 0.0, lambda: finite(late)),
    )
    total = prior
    for weight, signal in signals:
        if weight and len(rows) > 1:
            total = total + weight * standardised(signal(), CANDIDATES)
    return total


def neighbours(vectors: npt.NDArray[np.float32], prior: Floats) -> Floats:
    """The mean prior of the other candidates, each weighted by how near its vector is."""
    unit = directions(vectors)
    shares = np.exp(SHARPNESS * (unit @ unit.T - 1))
    np.fill_diagonal(shares, 0)
    return (shares / shares.sum(1, keepdims=True)) @ prior


def feedback(excerpts: Sequence[Excerpt], prior: Floats) -> Floats:
    """Pseudo-relevance feedback: words shared with candidates of other documents that the prior prefers."""
    texts = [f"{excerpt.title} {excerpt.text}" for excerpt in excerpts]
    documents = [excerpt.meta.get("document", excerpt.id) for excerpt in excerpts]
    return shared_words(texts, documents, prior)


def hubness(rows: Rows, vectors: npt.NDArray[np.float32], sample: Sample) -> Floats:
    """The mean cosine of each candidate with the passages of the sample nearest to it, itself aside."""
    cosines = directions(vectors) @ sample.directions.T
    cosines[rows[:, None] == sample.rows] = -1.0
    nearest = min(NEAREST, cosines.shape[1])
    return np.partition(cosines, -nearest, axis=1)[:, -nearest:].mean(1)


def directions(vectors: npt.NDArray[np.float32]) -> Floats:
    """Vectors of length 1; zeros stay zeros."""
    exact = vectors.astype(np.float64)
    return exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-9)


def shared_words(texts: Sequence[str], documents: Sequence[str], scores: Floats) -> Floats:
    """How alike each text is to those of other documents, of which each weighs as the softmax of its score.

    Words count as in BM25, and as rare as they are among these texts: what all of them say tells nothing.
    A document repeats itself, so what its own other passages say is no reason to believe it.
    """
    words, lengths = stems(texts)
    size = int(words.max(initial=0)) + 1
    pairs = np.repeat(np.arange(len(texts)), lengths) * size + words
    pairs, count = np.unique(pairs, return_counts=True)
    text, word = np.divmod(pairs, size)
    texts_with = np.bincount(word, minlength=size)
    rarity = np.log1p((len(texts) - texts_with + 0.5) / (texts_with + 0.5))
    long = 1 - LENGTH + LENGTH * lengths / max(1.0, float(lengths.mean()))
    weight = rarity[word] * count / (count + SATURATION * long[text])
    shares = np.exp(scores - scores.max())
    shared = weight * (shares / shares.sum())[text]
    number = np.unique(np.asarray(documents), return_inverse=True)[1]
    own = np.unique(number[text] * size + word, return_inverse=True)[1]
    others = np.bincount(word, shared, minlength=size)[word] - np.bincount(own, shared)[own]
    return np.bincount(text, weight * others, minlength=len(texts)).astype(np.float64)


def stems(texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A number for the stem of each word of all texts in turn, from 0, and how many words each text has.

    Words are runs of letters, digits and underscores, as in a regular expression, in lower case. They are cut
    in one array of characters: a hundred texts have tens of thousands of them.
    """
    lower = [text.lower() for text in texts]
    # Every text ends with a character that is of no word; lone surrogates are characters too.
    whole = "".join(f"{text}\n" for text in lower).encode("utf-32-le", "surrogatepass")
    characters = np.frombuffer(whole, np.uint32)
    codes = np.zeros(int(characters.max(initial=0)) + 1, np.int64)
    codes[characters] = 1
    every = np.flatnonzero(codes)
    codes[every] = [chr(c).isalnum() or c == ord("_") for c in every.tolist()]
    codes[codes > 0] = np.arange(1, codes.sum() + 1)
    letters = np.append(codes[characters], np.zeros(STEM, np.int64))
    first = np.flatnonzero((letters[:-1] > 0) & (np.append(0, letters[:-2]) == 0))
    base, number = int(codes.max()) + 1, letters[first]
    inside = np.ones(len(first), np.bool_)
    for offset in range(1, STEM):
        letter = letters[first + offset]
        inside &= letter > 0
        if base**STEM > np.iinfo(np.int64).max:  # more characters than most scripts have
            number = np.unique(number, return_inverse=True)[1]
        number = number * base + letter * inside
    ends = np.cumsum([len(text) + 1 for text in lower])
    counts = np.diff(np.searchsorted(first, ends), prepend=0)
    return np.unique(number, return_inverse=True)[1], counts
