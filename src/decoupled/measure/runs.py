"""Runs as TREC writes them, rankings of any system: read, reranked from stored passages, and scored."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from decoupled.errors import InputError
from decoupled.index.documents.files import Problems
from decoupled.index.documents.rows import read_rows
from decoupled.index.documents.sources import BY_NAME, Source, single_file
from decoupled.index.stale import document_of
from decoupled.measure.metrics import Qrels, Run, mrr, ndcg, recall
from decoupled.search.engine import Engine
from decoupled.search.results import Hits


def read_run(source: Source) -> dict[str, list[str]]:
    """Ids by query, best first: by score, and where scores are equal in the order of trec_eval."""
    file, problems = replace(single_file(source), format=BY_NAME["lines"]), Problems("stop")
    ranked: dict[str, list[tuple[float, str]]] = {}
    for number, fields in read_rows(file, problems):
        try:
            query, _, ident, _, score, _ = fields["text"].split()
            if not isfinite(value := float(score)):
                raise ValueError
        except ValueError:
            expected = "expected six columns: query-id Q0 id rank score name"
            problems.fail(file.problem(number, f"is {fields['text']!r:.80}; {expected}"))
        else:
            ranked.setdefault(query, []).append((value, ident))
    best_first = {query: sorted(each, reverse=True) for query, each in ranked.items()}
    return {query: list(dict.fromkeys(i for _, i in each)) for query, each in best_first.items()}


def read_ids(*sources: Source) -> list[str]:
    """Ids that another first stage gave, one a line."""
    files = [replace(single_file(source), format=BY_NAME["lines"]) for source in sources]
    rows = (fields["text"] for file in files for _, fields in read_rows(file, Problems("stop")))
    return list(dict.fromkeys(rows))


def rerank_run(
    engine: Engine, run: Run, texts: Mapping[str, str], *, k: int | None = None, **how: Any
) -> Iterator[tuple[str, Hits]]:
    """Each query of a run with its passages as `Engine.search(**how)` ranks them, from their stored states.

    `texts` are those of the queries. Ids that the index does not have are named in the `notes` of the hits.
    """
    if lost := [query for query in run if query not in texts]:
        raise InputError(f"the run ranks query {lost[0]!r}, which has no text; name its queries")
    for query, ids in run.items():
        how["first_stage"] = lambda *_, ids=ids: ids
        yield query, engine.search(texts[query], k or sys.maxsize, **how)


def document_scores(hits: Hits) -> dict[str, float]:
    """The documents of these hits, best first: each once, as good as its best passage."""
    scores: dict[str, float] = {}
    for hit in hits:
        scores.setdefault(document_of(hit.id, hit.meta), hit.score)
    return scores


def run_lines(query: str, hits: Hits) -> Iterator[str]:
    """The lines of a run for a query."""
    for rank, (ident, score) in enumerate(document_scores(hits).items(), 1):
        if len(f"{query} {ident}".split()) != 2:
            raise InputError(f"{query!r} finds {ident!r}; in a run, ids have no spaces: rename it")
        yield f"{query} Q0 {ident} {rank} {score!r} decoupled"


def score_run(run: Run, qrels: Qrels) -> dict[str, float]:
    """Metrics over the judged queries with something relevant; one that the run lacks counts 0."""
    relevant = [q for q, grades in qrels.items() if any(grade > 0 for grade in grades.values())]
    if not any(query in run for query in relevant):
        raise InputError("the run has no query with a relevant passage; do the ids agree?")
    at_ten = {"ndcg@10": ndcg(run, qrels, 10), "mrr@10": mrr(run, qrels, 10)}
    return {"queries": len(relevant), **at_ten, "recall@100": recall(run, qrels, 100)}
