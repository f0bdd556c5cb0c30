"""The whole read path on judged queries: what each first stage finds, and what reranking adds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from decoupled.errors import InputError
from decoupled.index.index import Index
from decoupled.index.stale import document_of
from decoupled.measure.metrics import Qrels, Run, mrr, ndcg, recall
from decoupled.measure.pairs import Query, read_qrels, read_queries
from decoupled.measure.table import ResultTable
from decoupled.model.progress import Progress, counter
from decoupled.search.engine import Engine
from decoupled.search.request import FirstStage

_EXPECTED = "expected corpus.jsonl, queries.jsonl and qrels.tsv as in BEIR"


@dataclass(frozen=True, kw_only=True)
class StageScores:
    """One first stage, before and after the cross component has reordered its candidates."""

    first_stage: FirstStage
    queries: int
    recall_at_100: float
    before: Mapping[str, float]
    after: Mapping[str, float]

    def to_json(self) -> dict[str, object]:
        """The metrics as a JSON object, rounded to four digits."""
        sides = {"before": self.before, "after": self.after}
        return {
            "first_stage": self.first_stage,
            "queries": self.queries,
            "recall@100": round(self.recall_at_100, 4),
            **{side: {n: round(v, 4) for n, v in own.items()} for side, own in sides.items()},
        }


def evaluate_retrieval(
    index: str | Path,
    data: str | Path,
    *,
    limit: int | None = None,
    candidates: int = 100,
    runtime: str = "auto",
    progress: Progress | None = None,
) -> list[StageScores]:
    """Metrics of each first stage of an index, and of reranking, on the judged queries of a BEIR folder."""
    queries, qrels = judged_queries(data, limit)
    if qrels is None:
        raise InputError(f"{data} is a file; retrieval takes a folder in BEIR's layout")
    with Index.open(index, runtime=runtime) as opened:
        engine = Engine(opened)
        return stage_scores(engine, queries, qrels, candidates=candidates, progress=progress)


def judged_queries(data: str | Path, limit: int | None) -> tuple[list[Query], Qrels | None]:
    """Queries and their judgments; `limit` keeps the first ones.

    A BEIR folder gives the queries that are judged, by the `test` judgments if it has several sets. A file
    gives its queries and None.
    """
    folder = Path(data)
    if not folder.exists():
        raise InputError(f"{data} does not exist; give a file of queries or a BEIR folder")
    if not folder.is_dir():
        return list(read_queries(folder))[:limit], None
    queries, grades = sorted(folder.glob("queries.*")), judgments(folder)
    if not queries:
        raise InputError(f"{data} has no queries.jsonl; {_EXPECTED}")
    return [query for query in read_queries(queries[0]) if query.id in grades][:limit], grades


def judgments(data: str | Path) -> Qrels:
    """The grades of a file of judgments, or those of a BEIR folder: `test` if it has several sets."""
    folder = Path(data)
    qrels = sorted((*folder.glob("qrels.*"), *folder.glob("qrels/*.*")))
    if not folder.is_dir():
        return read_qrels(folder)
    if not qrels:
        raise InputError(f"{data} has no qrels.tsv; {_EXPECTED}")
    if len(qrels) > 1:
        qrels = [path for path in qrels if path.name.startswith("test.")]
    if len(qrels) != 1:
        raise InputError(f"{data}/qrels holds several sets of judgments and none is test; keep one")
    return read_qrels(qrels[0])


def stage_scores(
    engine: Engine,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    stages: Sequence[FirstStage] = get_args(FirstStage),
    candidates: int = 100,
    progress: Progress | None = None,
) -> list[StageScores]:
    """Metrics of each first stage over the judged queries."""
    # A query without a relevant passage has no nDCG: its best gain is 0.
    relevant = [q for q in queries if any(g > 0 for g in qrels.get(q.id, {}).values())]
    if not relevant:
        raise InputError("no query has a relevant passage; do the ids of queries and qrels agree?")
    kept = {q.id: qrels[q.id] for q in relevant}
    step = counter(progress, len(stages) * len(relevant))
    scores = []
    for stage in stages:
        first = {q.id: retrieve(engine, q.text, stage, candidates) for q in relevant}
        deep, second = first, {}
        if candidates < 100:  # the recall is at 100, however few of them are reranked
            deep = {q.id: retrieve(engine, q.text, stage, 100) for q in relevant}
        for q in relevant:
            hits = engine.search(q.text, candidates, first_stage=stage, candidates=candidates)
            # A document that was cut into passages is as good as its best one.
            named = (document_of(hit.id, hit.meta) for hit in hits)
            second[q.id] = list(dict.fromkeys(named))
            step(1)
        scores.append(
            StageScores(
                first_stage=stage,
                queries=len(relevant),
                recall_at_100=recall(deep, kept, 100),
                before=_at_ten(first, kept),
                after=_at_ten(second, kept),
            )
        )
    return scores


def _at_ten(run: Run, qrels: Qrels) -> dict[str, float]:
    return {"ndcg@10": ndcg(run, qrels, 10), "mrr@10": mrr(run, qrels, 10)}


def retrieve(engine: Engine, query: str, stage: FirstStage, count: int) -> list[str]:
    """Documents that the first stage alone finds, best first, each once."""
    windows = engine.candidates(query, count, first_stage=stage)
    return list(dict.fromkeys(document_of(window.id, window.meta) for window in windows))


def stage_table(stages: Sequence[StageScores]) -> ResultTable:
    """Each first stage, its scores before and after reranking side by side."""
    columns = ("first stage", "queries", "recall@100", "nDCG@10", "reranked", "MRR@10", "reranked")
    rows = []
    for stage in stages:
        sides = (stage.before, stage.after)
        scores = (side[metric] for metric in ("ndcg@10", "mrr@10") for side in sides)
        rows.append((stage.first_stage, stage.queries, stage.recall_at_100, *scores))
    return ResultTable(columns=columns, rows=rows)
