"""`evaluate`: how good is a model on judged data?"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from decoupled.cli import show
from decoupled.cli.indexing import progress_bar
from decoupled.errors import InputError


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(evaluate)


def evaluate(
    task: Annotated[str, typer.Option(help="retrieval")],
    data: Annotated[Path, typer.Option(help="BEIR folder: corpus, queries and qrels.")],
    model: Annotated[str | None, typer.Option(help="Model; the bundled one if not given.")] = None,
    index: Annotated[
        Path | None, typer.Option(help="Index of the corpus; made if not given.")
    ] = None,
    codec: Annotated[str, typer.Option(help="Codec of an index that is made.")] = "int8",
    limit: Annotated[int | None, typer.Option(min=1, help="Use the first N queries.")] = None,
    candidates: Annotated[int, typer.Option(min=1, help="Records that are reranked.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Measure a model on judged data."""
    if not data.exists():
        raise InputError(f"{data} does not exist; give a file or folder of judged data")
    if task != "retrieval":
        raise InputError(f"--task is {task!r}; choose retrieval")
    with tempfile.TemporaryDirectory() as scratch:
        path = index or _build(data, model, codec, Path(scratch) / "corpus.idx")
        _retrieval(path, data, limit, candidates, as_json)


def _build(data: Path, model: str | None, codec: str, path: Path) -> Path:
    from decoupled.bundled import starter_model
    from decoupled.corpus import read_passages, total_bytes
    from decoupled.index import Index

    with (
        Index.create(path, model or starter_model(), codec=codec) as fresh,
        progress_bar("indexing", total_bytes([data])) as bar,
    ):
        fresh.add(read_passages(data, on_error="skip", on_bytes=bar.read), progress=bar.added)
    return path


def _retrieval(index: Path, data: Path, limit: int | None, candidates: int, as_json: bool) -> None:
    from decoupled.corpus import read_qrels, read_queries
    from decoupled.engine import Engine
    from decoupled.measure.retrieval import evaluate_retrieval

    queries = list(read_queries(data))[:limit]
    with progress_bar("queries", 3 * len(queries)) as bar:
        found = evaluate_retrieval(
            Engine(index),
            queries,
            read_qrels(data),
            candidates=candidates,
            on_query=lambda: bar.read(1),
        )
    if as_json:
        show.document({"task": "retrieval", "stages": [stage.to_json() for stage in found]})
        return
    columns = ("first stage", "queries", "recall@100", "nDCG@10", "reranked", "MRR@10", "reranked")
    rows = [
        (
            s.first_stage,
            s.queries,
            s.recall_at_100,
            s.before["ndcg@10"],
            s.after["ndcg@10"],
            s.before["mrr@10"],
            s.after["mrr@10"],
        )
        for s in found
    ]
    show.table(columns, rows)
