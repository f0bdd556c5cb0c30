"""`cascade`: how few candidates the cross component must read, measured on the user's own queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoupled.cli import printing
from decoupled.cli.evaluate import judged_files
from decoupled.cli.index import progress_bar
from decoupled.cli.search import Index
from decoupled.errors import InputError

if TYPE_CHECKING:
    from decoupled.index.documents import Query
    from decoupled.measure.cascade import Tuned
    from decoupled.measure.ranking import Qrels


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(cascade)


def cascade(
    index: Index,
    data: Annotated[
        Path,
        typer.Option(help="Queries: a file (jsonl, txt, tsv), or a BEIR folder with judgments."),
    ],
    loss: Annotated[
        float, typer.Option(min=0, max=1, help="Relative loss of MRR@10 that is allowed.")
    ] = 0.002,
    limit: Annotated[int, typer.Option(min=8, help="Use the first N queries.")] = 400,
    candidates: Annotated[int, typer.Option(min=2, help="Records of the first stage.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Fit a cheap look at the candidates, so that `--cascade auto` reads only the best of them."""
    from decoupled.index.index import Index as Opened
    from decoupled.measure.cascade import tune_cascade
    from decoupled.search.engine import Engine

    queries, qrels = _asked(data, limit)
    opened = Opened.open(index)
    with progress_bar("queries", len(queries)) as bar:
        tuned = tune_cascade(
            Engine(opened),
            queries,
            qrels,
            count=candidates,
            loss=loss,
            on_query=lambda: bar.read(1),
        )
    tuned.cascade.save(opened.location)
    if as_json:
        printing.document(tuned.to_json())
    else:
        _show(tuned)
    printing.note(
        f"{opened.location.name}: reads {tuned.cascade.keep:.0%} of the candidates and what is close to "
        "the cut, with `search --cascade auto` or `ask --cascade auto`"
    )


def _asked(data: Path, limit: int) -> tuple[list[Query], Qrels | None]:
    from decoupled.index.documents import read_qrels, read_queries

    if not data.exists():
        raise InputError(f"{data} does not exist; give a file of queries or a BEIR folder")
    if not data.is_dir():
        return list(read_queries(data))[:limit], None
    queries, judgments = judged_files(data)
    qrels = read_qrels(judgments)
    return [query for query in read_queries(queries) if query.id in qrels][:limit], qrels


def _show(tuned: Tuned) -> None:
    rows = [
        (cut.keep, cut.read, cut.mrr, f"{cut.loss:.2%}", f"{plain.loss:.2%}")
        for cut, plain in zip(tuned.cuts, tuned.plain, strict=True)
    ]
    printing.table(("share", "read", "MRR@10", "lost", "lost by plain cosines"), rows)
