"""Tokenised examples: every text once, in flat arrays, and which texts and labels make each pair.

The pairs of a group stand together: the options of a question, the passages of a query.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.model.states import Ragged

Ints = npt.NDArray[np.int32]
Share = Literal["none", "query", "passage"]
ARRAYS = ("query_of", "passage_of", "label", "score", "question", "part")
"""The fields of examples that have a row for each pair."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """The texts that spans are scored with: character offsets of the passages' tokens, and gold answers."""

    offsets: Ragged
    """`[tokens,2]` offsets of each passage window, in characters of its whole passage."""
    texts: tuple[str, ...]
    text_of: Ints
    """The number of the text that each window is of."""
    golds: tuple[tuple[str, ...], ...]
    """Accepted answers of each question; none means that it has no answer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """Pairs in groups of `per_group`, with the texts that they are made of."""

    queries: Ragged
    passages: Ragged
    query_of: Ints
    passage_of: Ints
    label: Ints
    """`[pairs,2]`: rows of start and end with no-answer as row 0; or a class, option or grade, and 0."""
    score: npt.NDArray[np.float32]
    question: Ints
    """The number of the question or query that a pair belongs to."""
    part: Ints
    """The number of the part that a pair belongs to; parts stay together when a tune split is drawn."""
    per_group: int = 1
    share: Share = "none"
    """The side that all pairs of a group have in common."""
    links: npt.NDArray[np.bool_] | None = None
    """`[pairs,per_group]`: which of its group each pair hears in a hop; None is all of them."""
    truth: Truth | None = None

    def __post_init__(self) -> None:
        if len(self.query_of) % self.per_group:
            raise InputError(
                f"{len(self.query_of)} pairs do not make whole groups of {self.per_group}"
            )

    def __len__(self) -> int:
        return len(self.query_of)

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self) // self.per_group

    @property
    def window_numbers(self) -> npt.NDArray[np.int64]:
        """Which window of its text each of the passages is, from 0."""
        count = len(self.passages)
        if self.truth is None:  # the first window of each text is all that is read
            return np.zeros(count, np.int64)
        text_of = self.truth.text_of
        # Windows of one text are neighbours, so a new text begins where the number changes.
        first = np.flatnonzero(np.diff(text_of, prepend=-1))
        return np.arange(count) - np.repeat(first, np.diff(first, append=count))

    def select(self, groups: npt.NDArray[np.int64]) -> Examples:
        """The given groups, in that order; texts stay as they are."""
        rows = (groups[:, None] * self.per_group + np.arange(self.per_group)).reshape(-1)
        arrays: dict[str, Any] = {name: getattr(self, name)[rows] for name in ARRAYS}
        links = None if self.links is None else self.links[rows]
        return replace(self, links=links, **arrays)

    def divide(self, share: float = 0.1, seed: int = 0) -> tuple[Examples, Examples]:
        """(train, tune): whole parts are drawn until `share` of them are in tune; no passage is in both."""
        part = self.part[:: self.per_group]
        names = np.unique(part)
        drawn = np.random.default_rng(seed).permutation(names)[: max(1, round(share * len(names)))]
        if len(drawn) == len(names):
            raise InputError(
                f"the data has {len(names)} part(s) (passages, or queries to rank), too few to set some "
                "aside for judging; give more data, or ask for no evaluations"
            )
        tune = np.isin(part, drawn)
        return self.select(np.flatnonzero(~tune)), self.select(np.flatnonzero(tune))

    def digest(self) -> str:
        """A digest of the content: the tokens of all texts, and what makes each pair."""
        digest = hashlib.sha256()
        texts = (t for side in (self.queries, self.passages) for t in (side.values, side.lengths))
        links = () if self.links is None else (self.links,)
        for array in (*texts, *(getattr(self, name) for name in ARRAYS), *links):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]
