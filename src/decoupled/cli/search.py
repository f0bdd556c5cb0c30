"""`search` and `ask`: questions to an index."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from decoupled.cli import printing
from decoupled.cli.runtimes import Runtime
from decoupled.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from decoupled.search.engine import Engine
    from decoupled.search.results import Answers, Hits


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(search)
    app.command()(ask)


Index = Annotated[
    Path, typer.Argument(metavar="INDEX", help="An index: a folder, or an address such as s3://…")
]
Batch = Annotated[
    str | None,
    typer.Option(help="A file of queries (jsonl, txt, tsv); prints one JSON object a line."),
]
Stage = Annotated[
    str, typer.Option(help="First stage: lexical, dense, hybrid, or auto for what suits the model.")
]
Candidates = Annotated[int, typer.Option(min=1, help="Records that the first stage hands on.")]
Where = Annotated[
    str | None,
    typer.Option(help='Filter by metadata, as JSON: {"lang": "en", "year": {"gte": 1990}}.'),
]
CascadeShare = Annotated[
    str | None,
    typer.Option(
        "--cascade",
        help="Read only this share of the candidates (0.3), or auto for what `cascade` fitted.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        help="Keep states in memory up to this size (2GB): for --batch, and for a server."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def search(
    index: Index,
    query: Annotated[str | None, typer.Argument(help="What to look for.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many passages.")] = 10,
    batch: Batch = None,
    first_stage: Stage = "auto",
    candidates: Candidates = 100,
    where: Where = None,
    cascade: CascadeShare = None,
    memory: Memory = None,
    raw: Annotated[bool, typer.Option("--raw", help="Logits instead of probabilities.")] = False,
    runtime: Runtime = "auto",
    as_json: Json = False,
) -> None:
    """Find the passages that are most relevant to a query."""
    engine = open_engine(index, query, batch, runtime, cascade, memory)
    # What is compiled on first use is not a part of the times that are told.
    engine.rerank("warm up", texts=["a passage"])
    options: dict[str, Any] = {
        "first_stage": stage_name(first_stage),
        "candidates": candidates,
        "where": parse_where(where),
    }
    if batch is not None:
        run_batch(engine, batch, lambda text: engine.search(text, k, raw=raw, **options))
        return
    tell_cut(engine, [query or ""])
    hits = engine.search(query or "", k, raw=raw, **options)
    if as_json:
        printing.document(hits.to_json())
    elif hits.items:
        show_hits(hits)
    else:
        printing.note(_empty(engine) or "nothing found")


def ask(
    index: Index,
    question: Annotated[str | None, typer.Argument(help="A question.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many answers.")] = 3,
    batch: Batch = None,
    first_stage: Stage = "auto",
    candidates: Candidates = 100,
    where: Where = None,
    cascade: CascadeShare = None,
    memory: Memory = None,
    threshold: Annotated[float, typer.Option(help="Leave out answers with a lower score.")] = 0.0,
    runtime: Runtime = "auto",
    as_json: Json = False,
) -> None:
    """Answer a question with spans of the passages."""
    engine = open_engine(index, question, batch, runtime, cascade, memory)
    engine.ask("warm up", texts=["a passage"])
    options: dict[str, Any] = {
        "first_stage": stage_name(first_stage),
        "candidates": candidates,
        "where": parse_where(where),
        "threshold": threshold,
    }
    if batch is not None:
        run_batch(engine, batch, lambda text: engine.ask(text, k, **options))
        return
    tell_cut(engine, [question or ""])
    answers = engine.ask(question or "", k, **options)
    if as_json:
        printing.document(answers.to_json())
    elif answers.items:
        show_answers(answers)
    else:
        printing.note(_empty(engine) or "no answer")


def open_engine(
    index: Path,
    query: str | None,
    batch: str | None,
    runtime: str = "auto",
    cascade: str | None = None,
    memory: str | None = None,
) -> Engine:
    """The engine of an index, after checking that there is exactly one source of queries."""
    if query is None and batch is None:
        raise InputError(f"no query for {index}; write it after the index, or give --batch FILE")
    if query is not None and batch is not None:
        raise InputError(f"a query and --batch {batch} are given; leave out one of them")
    from decoupled.index.index import Index as Opened
    from decoupled.search.engine import Engine

    opened = Opened.open(index, runtime=runtime)
    return Engine(opened, cascade=parse_cascade(cascade), memory=memory)


def parse_cascade(text: str | None) -> float | Literal["auto"] | None:
    """The share of `--cascade`."""
    if text is None or text == "auto":
        return "auto" if text else None
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--cascade is {text!r}; give a share such as 0.3, or auto") from None


def run_batch(engine: Engine, batch: str, answer: Callable[[str], Hits | Answers]) -> None:
    """Answer the queries of a file, one JSON object a line; a bar where the lines are not seen."""
    from decoupled.cli.index import progress_bar

    texts = queries(batch)
    tell_cut(engine, texts)
    with progress_bar("queries", len(texts), hidden=sys.stdout.isatty()) as bar:
        for text in texts:
            printing.document(answer(text).to_json())
            bar.read(1)


def queries(batch: str) -> list[str]:
    """The texts of a file of queries."""
    from decoupled.index.documents import read_queries

    return [query.text for query in read_queries(batch)]


def stage_name(name: str) -> str:
    """A first stage, checked."""
    if name not in ("auto", "lexical", "dense", "hybrid"):
        raise InputError(f"--first-stage is {name!r}; choose auto, lexical, dense or hybrid")
    return name


def parse_where(text: str | None) -> dict[str, Any] | None:
    """The filter of `--where`."""
    import json

    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(
            f'--where is not JSON ({error}); write for example \'{{"lang": "en"}}\''
        ) from None
    if not isinstance(value, dict):
        raise InputError(
            f'--where is {text!r:.60}; write an object, for example \'{{"lang": "en"}}\''
        )
    return value


def tell_cut(engine: Engine, queries: Sequence[str]) -> None:
    """Warn of queries that are longer than what the model reads of them."""
    tokenizer = engine.runtime.tokenizer
    longest = max(tokenizer.lengths(queries), default=0)
    if longest > tokenizer.query_room:
        printing.note(
            f"warning: a query of {longest} tokens is read up to its first {tokenizer.query_room}; "
            "put what matters first"
        )


def _empty(engine: Engine) -> str:
    """What to say of an index without passages; nothing of another one."""
    if engine.index is None or len(engine.index):
        return ""
    name = engine.index.location.name
    return f"{name} holds no passages; add some with: decoupled add {name} CORPUS"


def show_hits(hits: Hits) -> None:
    """A table of passages, and where the time went."""
    printing.table(
        ("score", "id", "title", "text"), [(h.score, h.id, h.title, h.text[:240]) for h in hits]
    )
    show_timing(hits.timing.to_json())


def show_answers(answers: Answers) -> None:
    """Answers in their sentences, and where the time went."""
    rows = []
    for a in answers:
        left, right = max(0, a.start - 60), a.end + 60
        rows.append(
            (a.score, a.text, f"…{a.passage[left:right]}…".replace("\n", " "), a.passage_id)
        )
    printing.table(("score", "answer", "in", "id"), rows)
    show_timing(answers.timing.to_json())


def show_timing(timing: dict[str, float]) -> None:
    """One line of milliseconds."""
    total = timing.pop("total_ms")
    parts = ", ".join(f"{name[:-3]} {value:.1f}" for name, value in timing.items() if value)
    printing.note(f"{total:.1f} ms: {parts}")
