"""First-stage retrieval: lexical, dense, or both fused."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.store.base import Ranking, Snapshot, Where, ranking

FirstStage = Literal["lexical", "dense", "hybrid"]
FirstStageName = Literal["auto", FirstStage]
"""`auto` is both where the model learnt vectors, words alone elsewhere."""

FUSION = 60
"""Reciprocal rank fusion: rank r counts 1 / (FUSION + r) (Cormack, Clarke and Büttcher, 2009)."""


def retrieve(
    snapshot: Snapshot,
    stage: FirstStage,
    query: str,
    vector: npt.NDArray[np.float32],
    k: int,
    where: Where | None = None,
) -> Ranking:
    """The `k` best records of one stage; the vector is the query's."""
    match stage:
        case "lexical":
            return snapshot.lexical(query, k, where)
        case "dense":
            return snapshot.dense(vector, k, where)
        case "hybrid":
            return fuse([snapshot.lexical(query, k, where), snapshot.dense(vector, k, where)], k)
    raise InputError(f"first stage {stage!r}; choose one of {', '.join(get_args(FirstStage))}")


def fuse(rankings: list[Ranking], k: int) -> Ranking:
    """Several rankings as one, by the sum of their reciprocal ranks."""
    rows = np.concatenate([r.rows for r in rankings])
    gains = np.concatenate([1.0 / (FUSION + 1 + np.arange(len(r))) for r in rankings])
    unique, where = np.unique(rows, return_inverse=True)
    scores = np.bincount(where, weights=gains, minlength=len(unique)).astype(np.float32)
    return ranking(unique.astype(np.int64), scores, k)
