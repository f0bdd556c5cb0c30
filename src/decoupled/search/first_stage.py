"""First-stage retrieval: lexical, dense, or both fused; and what its scores add to the final score."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import get_args

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError, OptionError
from decoupled.index.encode import encode_texts
from decoupled.index.store.base import Ranking, Rows, Snapshot, Where, ranking
from decoupled.index.stored import named
from decoupled.model import annex
from decoupled.model.scoring import Floats, Scoring
from decoupled.model.spec import ModelSpec, Side
from decoupled.runtime.base import Runtime
from decoupled.search.request import CANDIDATES, FirstStage, OutsideStage, Request, Stage

FUSION = 60
"""Reciprocal rank fusion: rank r counts 1 / (FUSION + r) (Cormack, Clarke and Büttcher, 2009)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """The records that a request is about: those that the first stage found, or those that it names."""

    rows: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    """Rows of all candidates, best first, or in the order in which the request names them."""
    own: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    """Rows of the candidates in the reader's share, in the same order."""
    bm25: Floats = field(default_factory=lambda: np.zeros(0))
    """The BM25 score of each of `rows`; empty where the final score does not need it. Likewise `cosine`."""
    cosine: Floats = field(default_factory=lambda: np.zeros(0))
    rankings: Mapping[str, Ranking] = field(default_factory=dict)
    """The ranking of each search (lexical, dense…), where the request wants to see it."""
    unknown: Sequence[str] = ()
    """Ids that a first stage elsewhere gave, and the index does not have."""


class _Scores:
    """A search for one query, and the scores that it gives to rows, each computed once."""

    def __init__(self, search: Callable[..., Ranking]) -> None:
        self._search = search
        self._rows, self._scores = np.zeros(0, np.int64), np.zeros(0)

    def best(self, k: int, where: Where | None = None) -> Ranking:
        """The `k` best records."""
        return self._learn(self._search(k, where))

    def _learn(self, hits: Ranking) -> Ranking:
        """Keep the scores of a ranking."""
        # Sorted, so that `of` can use a binary search; a row keeps its first score.
        rows, first = np.unique(np.concatenate([self._rows, hits.rows]), return_index=True)
        self._scores = np.concatenate([self._scores, hits.scores])[first]
        self._rows = rows
        return hits

    def of(self, rows: Rows) -> Floats:
        """The score of each row; 0 where the search gives none."""
        lacking = np.setdiff1d(rows, self._rows)
        if len(lacking):
            self._learn(self._search(len(lacking), rows=lacking))
            # Rows that match nothing are not ranked: they score 0, and are not asked for again.
            none = np.setdiff1d(lacking, self._rows)
            self._learn(Ranking(none, np.zeros(len(none), np.float32)))
        return self._scores[np.searchsorted(self._rows, rows)]


class FirstStageQuery:
    """A query as both searches take it, and their scores of rows so far."""

    def __init__(self, snapshot: Snapshot, query: str, vector: npt.NDArray[np.float32]) -> None:
        words = _Scores(partial(snapshot.lexical, query))
        vectors = _Scores(partial(snapshot.dense, vector))
        self.lexical, self.bm25 = words.best, words.of
        """The best by BM25, and the BM25 score of rows: 0 for one that shares no word with the query."""
        self.dense, self.cosine = vectors.best, vectors.of
        """The same by the inner product with the query's vector; 0 for a row that has none."""


def first_stage(
    snapshot: Snapshot,
    request: Request,
    vectors: npt.NDArray[np.float32],
    spec: ModelSpec,
    default: Stage = "auto",
) -> Candidates:
    """The candidates of a request, with those of their scores that its final score needs.

    `vectors` has the vector of the query, where it retrieves. `default` stands for `auto`.
    """
    if not request.retrieve:
        named = snapshot.locate(request.ids)
        return Candidates(rows=named, own=snapshot.mine(named))
    query = FirstStageQuery(snapshot, request.query, vectors[0])
    fusion = spec.scoring.fusion if spec.scoring is not None else None

    def best(stage: str) -> Ranking:
        return retrieve(query, stage, request.candidates, request.where, fusion)

    auto: FirstStage = "hybrid" if spec.vector else "lexical"
    chosen = default if request.first_stage == "auto" else request.first_stage
    stage = "outside" if callable(chosen) else auto if chosen == "auto" else chosen
    hits, unknown = _outside(snapshot, request, chosen) if callable(chosen) else (best(stage), ())
    rankings = dict[str, Ranking]()
    if request.hops > 1:
        hits = annex.load("hop.links").follow(snapshot, hits, request.hops)
    if request.show_first_stage:
        parts: tuple[FirstStage, ...] = ("lexical", "dense") if stage == "hybrid" else ()
        rankings = {**{part: best(part) for part in parts}, stage: hits}
    scoring, rows, none = blended(request, spec) or Scoring(), hits.rows, np.zeros(0)
    return Candidates(
        rows=rows,
        own=snapshot.mine(rows),
        bm25=query.bm25(rows) if scoring.bm25 and len(rows) else none,
        cosine=query.cosine(rows) if scoring.cosine and len(rows) else none,
        rankings=rankings,
        unknown=unknown,
    )


def _outside(
    snapshot: Snapshot, request: Request, stage: OutsideStage
) -> tuple[Ranking, Sequence[str]]:
    """What a first stage elsewhere ranks, of the passages that are here, and the ids that are not."""
    if request.where:
        raise InputError("where filters the index's own first stage; filter in the one you gave")
    scores: dict[str, float] = {}
    for rank, one in enumerate(
        islice(stage(request.query, request.candidates), request.candidates)
    ):
        ident, score = (one, 1 / (1 + rank)) if isinstance(one, str) else one
        if not isinstance(ident, str):
            raise InputError(f"the first stage gave {one!r:.60}; expected an id, or (id, score)")
        scores.setdefault(ident, score)
    passages = named(snapshot, list(scores))
    unknown = [ident for ident in scores if ident not in passages]
    scored = {p: scores[ident] for ident in scores for p in passages.get(ident, ())}
    rows = snapshot.locate(list(scored))
    # Passages may have several windows, so that each row's id is looked up, where a score is shown.
    excerpts = snapshot.texts(rows) if request.show_first_stage else ()
    values = np.array([scored[e.id] for e in excerpts] or [0.0] * len(rows), np.float32)
    return Ranking(rows, values), unknown


def blended(request: Request, spec: ModelSpec) -> Scoring | None:
    """The weights of what is added to the rank logits of a request; None where nothing is."""
    scoring = spec.scoring or Scoring()
    ranks = request.head == "rank" or scoring.answer_rank
    return scoring if request.retrieve and request.blend and ranks else None


def retrieve(
    query: FirstStageQuery,
    stage: str,
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
            return query.lexical(k, where)
        case "dense":
            return query.dense(k, where)
        case "hybrid":
            lists = [query.lexical(k, where), query.dense(k, where)]
            if fusion is None:
                return fuse(lists, k)
            rows = np.unique(np.concatenate([hits.rows for hits in lists]))
            sums = standardised(query.cosine(rows)) + fusion * standardised(query.bm25(rows))
            return ranking(rows, sums.astype(np.float32), k)
    raise OptionError(
        "first_stage", f"is {stage!r}; choose {', '.join(get_args(FirstStage))} or auto"
    )


def prior(candidates: Candidates, scoring: Scoring) -> Floats:
    """The numbers that first-stage scores add to the rank logit of each candidate.

    The spread is that of the first hundred, as when the weights were learnt: a longer tail would make the
    same scores count for more.
    """
    added = np.zeros(len(candidates.rows))
    weighted = ((scoring.cosine, candidates.cosine), (scoring.bm25, candidates.bm25))
    for weight, scores in weighted:
        if weight and len(scores):
            added += weight * standardised(scores, CANDIDATES)
    return added


def standardised(scores: Floats, first: int | None = None) -> Floats:
    """The scores scaled to mean 0 and standard deviation 1 over the `first` ones; 0 where those are equal."""
    if not len(scores):
        return scores
    return (scores - scores[:first].mean()) / max(float(scores[:first].std()), 1e-9)


def fuse(rankings: list[Ranking], k: int) -> Ranking:
    """Several rankings as one, by the sum of their reciprocal ranks."""
    rows = np.concatenate([r.rows for r in rankings])
    # Ranks count from 1.
    gains = np.concatenate([1.0 / (FUSION + 1 + np.arange(len(r))) for r in rankings])
    unique, where = np.unique(rows, return_inverse=True)
    scores = np.bincount(where, weights=gains, minlength=len(unique)).astype(np.float32)
    return ranking(unique.astype(np.int64), scores, k)


def embed(runtime: Runtime, texts: Sequence[str], side: Side) -> npt.NDArray[np.float32]:
    """The vector of each text, of length one; a passage beyond the model counts with its beginning."""
    if runtime.spec.vector is None:
        raise InputError("this model has no first-stage vector; choose one that learnt it")
    tokenizer = runtime.tokenizer
    if side == "query":
        ids = tokenizer.queries(texts)
    else:
        ids = [windows[0].ids for windows in tokenizer.windows(texts)]
    vectors = encode_texts(runtime, side, ids).vectors
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
