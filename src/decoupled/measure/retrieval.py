"""The whole read path on judged queries: what each first stage finds, and what reranking adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decoupled.errors import InputError
from decoupled.index.documents import Query
from decoupled.measure.ranking import Qrels, mrr, ndcg, recall
from decoupled.search.engine import Engine
from decoupled.search.first_stage import FirstStage, find


@dataclass(frozen=True, kw_only=True)
class StageScores:
    """One first stage, before and after the cross component has reordered its candidates."""

    first_stage: FirstStage
    queries: int
    recall_at_100: float
    before: Mapping[str, float]
    after: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Plain values, rounded."""
        return {
            "first_stage": self.first_stage,
            "queries": self.queries,
            "recall@100": round(self.recall_at_100, 4),
            "before": {name: round(value, 4) for name, value in self.before.items()},
            "after": {name: round(value, 4) for name, value in self.after.items()},
        }


def evaluate_retrieval(
    engine: Engine,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    stages: Sequence[FirstStage] = ("lexical", "dense", "hybrid"),
    candidates: int = 100,
    on_query: Callable[[], None] | None = None,
) -> list[StageScores]:
    """Metrics of each first stage over the judged queries."""
    judged = [q for q in queries if any(g > 0 for g in qrels.get(q.id, {}).values())]
    if not judged:
        raise InputError("no query has a relevant passage; do the ids of queries and qrels agree?")
    kept = {q.id: qrels[q.id] for q in judged}
    found = []
    for stage in stages:
        first: dict[str, list[str]] = {}
        deep: dict[str, list[str]] = {}
        second: dict[str, list[str]] = {}
        for query in judged:
            first[query.id] = retrieve(engine, query.text, stage, candidates)
            # The recall is at 100, however few of them are reranked.
            deep[query.id] = (
                first[query.id] if candidates >= 100 else retrieve(engine, query.text, stage, 100)
            )
            hits = engine.search(query.text, candidates, first_stage=stage, candidates=candidates)
            second[query.id] = [hit.id for hit in hits]
            if on_query is not None:
                on_query()
        found.append(
            StageScores(
                first_stage=stage,
                queries=len(judged),
                recall_at_100=recall(deep, kept, 100),
                before={"ndcg@10": ndcg(first, kept, 10), "mrr@10": mrr(first, kept, 10)},
                after={"ndcg@10": ndcg(second, kept, 10), "mrr@10": mrr(second, kept, 10)},
            )
        )
    return found


def retrieve(engine: Engine, query: str, stage: FirstStage, count: int) -> list[str]:
    """Ids that the first stage alone finds, best first, each once."""
    assert engine.index is not None
    snapshot = engine.index.refresh()
    vector = engine.encode_query(query).vectors[0]
    rows = find(snapshot, stage, query, vector, count).rows
    return list(dict.fromkeys(excerpt.id for excerpt in snapshot.texts(rows)))
