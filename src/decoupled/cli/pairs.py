"""`rerank` and `classify`: texts in, scores out, no index."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from decoupled.cli import printing
from decoupled.cli.runtimes import Runtime
from decoupled.cli.search import tell_cut
from decoupled.errors import InputError


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(rerank)
    app.command()(classify)


Model = Annotated[str, typer.Option("--model", help="Model folder, checkpoint folder or hub name.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Raw = Annotated[bool, typer.Option("--raw", help="Logits instead of probabilities.")]


def rerank(
    query: Annotated[str, typer.Argument(help="What the passages are ranked for.")],
    passages: Annotated[
        list[str] | None,
        typer.Argument(help="Files or folders of passages; `-` or nothing reads stdin."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model folder, checkpoint or hub name; the bundled one if not given."),
    ] = None,
    k: Annotated[int | None, typer.Option("-k", min=1, help="Keep the best k.")] = None,
    raw: Raw = False,
    runtime: Runtime = "auto",
    as_json: Json = False,
) -> None:
    """Order passages by their relevance to a query."""
    if not passages and sys.stdin.isatty():
        raise InputError("no passages: name a file, or pipe them in as jsonl, csv or one per line")
    from decoupled.index.documents import read_passages
    from decoupled.model.folder import starter_model
    from decoupled.search.engine import Engine

    found = list(read_passages(*(passages or ["-"])))
    engine = Engine(model or starter_model(), runtime=runtime)
    tell_cut(engine, [query])
    hits = engine.rerank(query, texts=found, k=k, raw=raw)
    if as_json:
        printing.document(hits.to_json())
        return
    if not found:
        printing.note(f"no passages in {' '.join(passages or ['stdin'])}")
        return
    printing.table(("score", "id", "text"), [(hit.score, hit.id, hit.text[:300]) for hit in hits])


def classify(
    model: Model,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Two texts: query (or premise) and passage.")
    ] = None,
    pairs: Annotated[
        str | None, typer.Option("--pairs", help="A file of pairs: jsonl, csv or tsv.")
    ] = None,
    raw: Raw = False,
    runtime: Runtime = "auto",
    as_json: Json = False,
) -> None:
    """Say the class of a pair of texts, or of every pair in a file."""
    if bool(texts) == bool(pairs) or (texts and len(texts) != 2):
        raise InputError("give two texts, or --pairs FILE, and not both")
    from decoupled.index.documents import read_pairs
    from decoupled.search.engine import Engine

    chosen = (
        [(texts[0], texts[1])]
        if texts
        else [(p.query, p.passage) for p in read_pairs(pairs or "-")]
    )
    engine = Engine(model, runtime=runtime)
    tell_cut(engine, [query for query, _ in chosen])
    labels = engine.classify(chosen, raw=raw)
    if as_json:
        printing.document({"labels": [label.to_json() for label in labels]})
        return
    rows = [(x.label, x.score, a[:80], b[:80]) for x, (a, b) in zip(labels, chosen, strict=True)]
    printing.table(("label", "score", "query", "passage"), rows)
