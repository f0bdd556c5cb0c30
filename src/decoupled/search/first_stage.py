"""First-stage retrieval: lexical, dense, or both fused; and what it has to say about the final score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.store.base import Ranking, Rows, Snapshot, Where, ranking
from decoupled.model.scoring import Floats, Scoring

FirstStage = Literal["lexical", "dense", "hybrid"]
FirstStageName = Literal["auto", FirstStage]
"""`auto` is both where the model learnt vectors, words alone elsewhere."""

FUSION = 60
"""Reciprocal rank fusion: rank r counts 1 / (FUSION + r) (Cormack, Clarke and Büttcher, 2009)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sought:
    """A query as both searches take it."""

    snapshot: Snapshot
    query: str
    vector: npt.NDArray[np.float32]

    def bm25(self, rows: Rows) -> Floats:
        """The BM25 score of each row; 0 where it shares no word with the query."""
        return _at(rows, self.snapshot.lexical(self.query, len(rows), rows=rows))

    def cosine(self, rows: Rows) -> Floats:
        """The inner product of each row's vector with the query's; 0 where it has none."""
        return _at(rows, self.snapshot.dense(self.vector, len(rows), rows=rows))


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
    snapshot = sought.snapshot
    match stage:
        case "lexical":
            return snapshot.lexical(sought.query, k, where)
        case "dense":
            return snapshot.dense(sought.vector, k, where)
        case "hybrid":
            lists = [
                snapshot.lexical(sought.query, k, where),
                snapshot.dense(sought.vector, k, where),
            ]
            if fusion is None:
                return fuse(lists, k)
            rows = np.unique(np.concatenate([found.rows for found in lists]))
            sums = standardised(sought.cosine(rows)) + fusion * standardised(sought.bm25(rows))
            return ranking(rows, sums.astype(np.float32), k)
    raise InputError(f"first stage {stage!r}; choose one of {', '.join(get_args(FirstStage))}")


def prior(sought: Sought, rows: Rows, scoring: Scoring) -> Floats:
    """What both scores of the first stage add to the rank logits of candidates, whoever found them."""
    added = np.zeros(len(rows))
    for weight, scores in ((scoring.cosine, sought.cosine), (scoring.bm25, sought.bm25)):
        if weight and len(rows):
            added += weight * standardised(scores(rows))
    return added


def standardised(scores: Floats) -> Floats:
    """With mean 0 and standard deviation 1; all 0 where they are equal."""
    if not len(scores):
        return scores
    return (scores - scores.mean()) / max(float(scores.std()), 1e-9)


def _at(rows: Rows, found: Ranking) -> Floats:
    """The scores of a ranking in the order of these rows."""
    order = np.argsort(rows)
    scores = np.zeros(len(rows))
    scores[order[np.searchsorted(rows[order], found.rows)]] = found.scores
    return scores


def fuse(rankings: list[Ranking], k: int) -> Ranking:
    """Several rankings as one, by the sum of their reciprocal ranks."""
    rows = np.concatenate([r.rows for r in rankings])
    gains = np.concatenate([1.0 / (FUSION + 1 + np.arange(len(r))) for r in rankings])
    unique, where = np.unique(rows, return_inverse=True)
    scores = np.bincount(where, weights=gains, minlength=len(unique)).astype(np.float32)
    return ranking(unique.astype(np.int64), scores, k)
