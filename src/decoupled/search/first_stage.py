"""First-stage retrieval: lexical, dense, or both fused; and what it has to say about the final score."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.store.base import Ranking, Rows, Snapshot, Where, ranking
from decoupled.model.scoring import Floats, Scoring
from decoupled.search.feedback import shared_words
from decoupled.search.sample import Sample, directions

FirstStage = Literal["lexical", "dense", "hybrid"]
FirstStageName = Literal["auto", FirstStage]
"""`auto` is both where the model learnt vectors, words alone elsewhere."""

CANDIDATES = 100
"""Records that the first stage hands on."""
NEAR = 8.0
"""Inverse temperature of the cosines between candidates."""
FUSION = 60
"""Reciprocal rank fusion: rank r counts 1 / (FUSION + r) (Cormack, Clarke and Büttcher, 2009)."""


class _Scores:
    """What a search gives to rows, each asked for once."""

    def __init__(self, search: Callable[[Rows], Ranking]) -> None:
        self._search = search
        self._rows, self._scores = np.zeros(0, np.int64), np.zeros(0)

    def learn(self, found: Ranking) -> Ranking:
        """Keep what a search found."""
        rows, first = np.unique(np.concatenate([self._rows, found.rows]), return_index=True)
        self._scores = np.concatenate([self._scores, found.scores])[first]
        self._rows = rows
        return found

    def of(self, rows: Rows) -> Floats:
        """The score of each row; 0 where the search gives none."""
        lacking = np.setdiff1d(rows, self._rows)
        if len(lacking):
            self.learn(self._search(lacking))
            none = np.setdiff1d(lacking, self._rows)
            self.learn(Ranking(none, np.zeros(len(none), np.float32)))
        return self._scores[np.searchsorted(self._rows, rows)]


class Sought:
    """A query as both searches take it, and their scores of rows so far.

    `late` says what late interaction thinks of rows, and `sample` what is common in the index.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        query: str,
        vector: npt.NDArray[np.float32],
        late: Callable[[Rows], Floats] | None = None,
        sample: Callable[[Snapshot], Sample] = Sample,
    ) -> None:
        self._snapshot, self._query, self._vector = snapshot, query, vector
        self.late, self._sample = late, sample
        self._bm25 = _Scores(lambda rows: snapshot.lexical(query, len(rows), rows=rows))
        self._cosine = _Scores(lambda rows: snapshot.dense(vector, len(rows), rows=rows))

    def lexical(self, k: int, where: Where | None = None) -> Ranking:
        """The `k` best by BM25."""
        return self._bm25.learn(self._snapshot.lexical(self._query, k, where))

    def dense(self, k: int, where: Where | None = None) -> Ranking:
        """The `k` best by the inner product of vectors."""
        return self._cosine.learn(self._snapshot.dense(self._vector, k, where))

    def bm25(self, rows: Rows) -> Floats:
        """The BM25 score of each row; 0 where it shares no word with the query."""
        return self._bm25.of(rows)

    def cosine(self, rows: Rows) -> Floats:
        """The inner product of each row's vector with the query's; 0 where it has none."""
        return self._cosine.of(rows)

    def alike(self, rows: Rows, scores: Floats) -> Floats:
        """How many words each row shares with those of other documents that these scores think most of."""
        found = self._snapshot.texts(rows)
        texts = [f"{one.title} {one.text}" for one in found]
        return shared_words(texts, [one.meta.get("document", one.id) for one in found], scores)

    def near(self, rows: Rows) -> Floats:
        """`[R,R]` shares of the other rows in each one's surroundings, by the cosine of their vectors."""
        vectors = directions(self._snapshot.vectors(rows))
        shares = np.exp(NEAR * (vectors @ vectors.T - 1))
        np.fill_diagonal(shares, 0)
        return shares / shares.sum(1, keepdims=True)

    def alone(self, rows: Rows) -> Floats:
        """How far each row is from the passages of the index that are nearest to it."""
        return -self._sample(self._snapshot).crowding(rows)


def retrieve(
    sought: Sought,
    stage: FirstStage,
    k: int,
    where: Where | None = None,
    fusion: float | None = None,
) -> Ranking:
    """The `k` best records of one stage.

    `hybrid` is what either search finds, by the sum of both scores, each standardised over these, BM25's
    `fusion` times; without it, by the sum of reciprocal ranks.
    """
    match stage:
        case "lexical":
            return sought.lexical(k, where)
        case "dense":
            return sought.dense(k, where)
        case "hybrid":
            lists = [sought.lexical(k, where), sought.dense(k, where)]
            if fusion is None:
                return fuse(lists, k)
            rows = np.unique(np.concatenate([found.rows for found in lists]))
            sums = standardised(sought.cosine(rows)) + fusion * standardised(sought.bm25(rows))
            return ranking(rows, sums.astype(np.float32), k)
    raise InputError(f"first stage {stage!r}; choose one of {', '.join(get_args(FirstStage))}")


def prior(sought: Sought, rows: Rows, scoring: Scoring) -> Floats:
    """What the scores of the first stage add to the rank logits of candidates, and what others say of them.

    Rows come best first. The spread is that of the first hundred, as when the weights were learnt: a longer
    tail would make the same scores count for more.
    """
    added = np.zeros(len(rows))
    for weight, scores in ((scoring.cosine, sought.cosine), (scoring.bm25, sought.bm25)):
        if weight and len(rows):
            added += weight * standardised(scores(rows), CANDIDATES)
    said = added.copy()
    heard: tuple[tuple[float, Callable[[], Floats] | None], ...] = (
        (scoring.neighbours, lambda: sought.near(rows) @ said),
        (scoring.feedback, lambda: sought.alike(rows, said)),
        (scoring.crowding, lambda: sought.alone(rows)),
        (scoring.late, sought.late and partial(sought.late, rows)),
    )
    for weight, said_of in heard:
        if weight and said_of is not None and len(rows) > 1:
            added += weight * standardised(said_of(), CANDIDATES)
    return added


def standardised(scores: Floats, first: int | None = None) -> Floats:
    """With mean 0 and standard deviation 1, of the first so many; all 0 where those are equal."""
    if not len(scores):
        return scores
    return (scores - scores[:first].mean()) / max(float(scores[:first].std()), 1e-9)


def fuse(rankings: list[Ranking], k: int) -> Ranking:
    """Several rankings as one, by the sum of their reciprocal ranks."""
    rows = np.concatenate([r.rows for r in rankings])
    gains = np.concatenate([1.0 / (FUSION + 1 + np.arange(len(r))) for r in rankings])
    unique, where = np.unique(rows, return_inverse=True)
    scores = np.bincount(where, weights=gains, minlength=len(unique)).astype(np.float32)
    return ranking(unique.astype(np.int64), scores, k)
