"""`search`, `ask`, `rerank` and `classify`: questions to an index, and texts against texts without one."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, get_args

from typer import Argument, Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


QueryFile = Annotated[
    str | None, Option(help="A file of queries (jsonl, txt, tsv); prints one JSON object a line.")
]
Stage = Annotated[
    str, Option(help="First stage: lexical, dense, hybrid, or auto for what suits the model.")
]
Candidates = Annotated[int, Option(min=1, help="Records that the first stage hands on.")]
Where = Annotated[
    str | None, Option(help='Filter by metadata, as JSON: {"lang": "en", "year": {"gte": 1990}}.')
]


def search(
    index: opt.Existing,
    query: Annotated[str | None, Argument(help="What to look for.")] = None,
    k: Annotated[int, Option("-k", min=1, help="How many passages.")] = 10,
    batch: QueryFile = None,
    first_stage: Stage = "auto",
    candidates: Candidates = 100,
    where: Where = None,
    cascade: opt.CascadeShare = None,
    memory: opt.Memory = None,
    raw: opt.Raw = False,
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Find the passages that are most relevant to a query."""
    engine = _engine(index, query, batch, runtime, cascade, memory)
    # What is compiled on first use is not a part of the times that are told.
    engine.rerank("warm up", texts=["a passage"])
    options = _options(first_stage, candidates, where)
    hits = _run(engine, query, batch, lambda text: engine.search(text, k, raw=raw, **options))
    if hits is None:
        return
    if as_json:
        printing.document(hits.to_json())
    elif hits.items:
        rows = [(h.score, h.id, h.title, h.text[:240]) for h in hits]
        printing.table(("score", "id", "title", "text"), rows)
        _show_timing(hits.timing.to_json())
    else:
        printing.note(_empty(engine) or "nothing found")


def ask(
    index: opt.Existing,
    question: Annotated[str | None, Argument(help="A question.")] = None,
    k: Annotated[int, Option("-k", min=1, help="How many answers.")] = 3,
    batch: QueryFile = None,
    first_stage: Stage = "auto",
    candidates: Candidates = 100,
    where: Where = None,
    cascade: opt.CascadeShare = None,
    memory: opt.Memory = None,
    threshold: Annotated[float, Option(help="Leave out answers with a lower score.")] = 0.0,
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Answer a question with spans of the passages."""
    engine = _engine(index, question, batch, runtime, cascade, memory)
    engine.ask("warm up", texts=["a passage"])
    options = _options(first_stage, candidates, where) | {"threshold": threshold}
    answers = _run(engine, question, batch, lambda text: engine.ask(text, k, **options))
    if answers is None:
        return
    if as_json:
        printing.document(answers.to_json())
    elif answers.items:
        rows = []
        for a in answers:
            around = a.passage[max(0, a.start - 60) : a.end + 60]
            rows.append((a.score, a.text, f"…{around}…".replace("\n", " "), a.passage_id))
        printing.table(("score", "answer", "in", "id"), rows)
        _show_timing(answers.timing.to_json())
    else:
        printing.note(_empty(engine) or "no answer")


def rerank(
    query: Annotated[str, Argument(help="What the passages are ranked for.")],
    passages: Annotated[
        list[str] | None, Argument(help="Files or folders of passages; `-` or nothing reads stdin.")
    ] = None,
    model: opt.Starter = None,
    k: Annotated[int | None, Option("-k", min=1, help="Keep the best k.")] = None,
    raw: opt.Raw = False,
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Order passages by their relevance to a query."""
    if not passages and sys.stdin.isatty():
        raise InputError("no passages: name a file, or pipe them in as jsonl, csv or one per line")
    from decoupled.model.folder import starter_model

    texts = list(dc.read_passages(*(passages or ["-"])))
    engine = dc.Engine(model or starter_model(), runtime=runtime)
    _tell_cut(engine, [query])
    hits = engine.rerank(query, texts=texts, k=k, raw=raw)
    if as_json:
        printing.document(hits.to_json())
        return
    if not texts:
        printing.note(f"no passages in {' '.join(passages or ['stdin'])}")
        return
    printing.table(("score", "id", "text"), [(hit.score, hit.id, hit.text[:300]) for hit in hits])


def classify(
    model: Annotated[str, Option("--model", help="Model folder, checkpoint folder or hub name.")],
    texts: Annotated[
        list[str] | None, Argument(help="Two texts: query (or premise) and passage.")
    ] = None,
    pairs: Annotated[
        str | None, Option("--pairs", help="A file of pairs: jsonl, csv or tsv.")
    ] = None,
    raw: opt.Raw = False,
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Say the class of a pair of texts, or of every pair in a file."""
    if bool(texts) == bool(pairs) or (texts and len(texts) != 2):
        raise InputError("give two texts, or --pairs FILE, and not both")
    read = [(p.query, p.passage) for p in dc.read_pairs(pairs)] if pairs else []
    chosen = [(texts[0], texts[1])] if texts else read
    engine = dc.Engine(model, runtime=runtime)
    _tell_cut(engine, [query for query, _ in chosen])
    labels = engine.classify(chosen, raw=raw)
    if as_json:
        printing.document({"labels": [label.to_json() for label in labels]})
        return
    rows = [(x.label, x.score, a[:80], b[:80]) for x, (a, b) in zip(labels, chosen, strict=True)]
    printing.table(("label", "score", "query", "passage"), rows)


def queries(batch: str) -> list[str]:
    """The texts of a file of queries."""
    from decoupled.index.documents import read_queries

    return [query.text for query in read_queries(batch)]


def _engine(
    index: Path,
    query: str | None,
    batch: str | None,
    runtime: str,
    cascade: str | None,
    memory: str | None,
) -> dc.Engine:
    """The engine of an index, after checking that there is exactly one source of queries."""
    if query is None and batch is None:
        raise InputError(f"no query for {index}; write it after the index, or give --batch FILE")
    if query is not None and batch is not None:
        raise InputError(f"a query and --batch {batch} are given; leave out one of them")
    opened = dc.Index.open(index, runtime=runtime)
    return dc.Engine(opened, cascade=opt.cascade_share(cascade), memory=memory)


def _options(first_stage: str, candidates: int, where: str | None) -> dict[str, Any]:
    from decoupled.search.first_stage import FirstStageName

    return {
        "first_stage": opt.one_of("--first-stage", first_stage, get_args(FirstStageName)),
        "candidates": candidates,
        "where": _where(where),
    }


def _where(text: str | None) -> dict[str, Any] | None:
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


def _run(
    engine: dc.Engine, query: str | None, batch: str | None, answer: Callable[[str], Any]
) -> Any:
    """What the engine answers; the queries of a file are printed, one JSON object a line."""
    texts = [query or ""] if batch is None else queries(batch)
    _tell_cut(engine, texts)
    if batch is None:
        return answer(texts[0])
    # A bar only where the lines are not seen.
    with printing.progress_bar("queries", len(texts), hidden=sys.stdout.isatty()) as bar:
        for text in texts:
            printing.document(answer(text).to_json())
            bar.add(1)
    return None


def _tell_cut(engine: dc.Engine, queries: Sequence[str]) -> None:
    """Warn of queries that are longer than what the model reads of them."""
    tokenizer = engine.runtime.tokenizer
    longest = max(tokenizer.lengths(queries), default=0)
    if longest > tokenizer.query_room:
        printing.note(
            f"warning: a query of {longest} tokens is read up to its first {tokenizer.query_room}; "
            "put what matters first"
        )


def _empty(engine: dc.Engine) -> str:
    """What to say of an index without passages; nothing of another one."""
    if engine.index is None or len(engine.index):
        return ""
    name = engine.index.location.name
    return f"{name} holds no passages; add some with: decoupled add {name} CORPUS"


def _show_timing(timing: dict[str, float]) -> None:
    total = timing.pop("total_ms")
    parts = ", ".join(f"{name[:-3]} {value:.1f}" for name, value in timing.items() if value)
    printing.note(f"{total:.1f} ms: {parts}")
