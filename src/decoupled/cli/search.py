"""`search`, `ask`, `rerank`, `classify`, `serve` and `demo`: what an index or a model answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.errors import InputError

if TYPE_CHECKING:
    from decoupled.measure.pairs import Query

QueryFile = Annotated[
    str | None, Option(help="A file of queries (jsonl, txt, tsv); prints one JSON object a line.")
]
Stage = Annotated[str, Option(help="lexical, dense, hybrid, or auto for what suits the model.")]
Candidates = Annotated[int, Option(min=1, help="Records that the first stage hands on.")]
Filter = Annotated[
    str | None, Option(help='Filter by metadata, as JSON: {"lang": "en", "year": {"gte": 1990}}.')
]


def search(
    index: opt.Existing,
    query: Annotated[str | None, Argument(help="What to look for.")] = None,
    k: Annotated[int, Option("-k", min=1, help="How many passages.")] = 10,
    batch: QueryFile = None,
    form: Annotated[str, Option("--format", help="Of --batch: json, or trec, a run.")] = "json",
    first_stage: Stage = "auto",
    candidates: Candidates = 100,
    where: Filter = None,
    cascade: opt.ReadShare = None,
    memory: opt.Memory = None,
    blend: Annotated[
        float,
        Option(
            min=0,
            help="Scale the weight of first-stage scores (BM25, cosine) in the final score. 1 uses what the "
            "model learnt, 0 ranks by the cross-encoder alone.",
        ),
    ] = 1.0,
    raw: opt.Raw = False,
    show_first_stage: Annotated[bool, Option("--show-first-stage", help="And its ranks.")] = False,
    prune: opt.Prune = None,
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Find the passages that are most relevant to a query."""
    from decoupled.search.request import parse_filter, parse_threshold

    how: Any = {"first_stage": first_stage, "candidates": candidates, "where": parse_filter(where)}
    trec = opt.one_of("--format", form, ("json", "trec")) == "trec"
    if trec and batch is None:
        raise InputError("--format trec writes the run of many queries; give them by --batch FILE")
    engine = _engine(index, query, batch, runtime, cascade, memory)
    # What is compiled on first use is not a part of the times that are printed.
    engine.search("warm up", k=1, candidates=1)
    answer = partial(engine.search, k=k, blend=blend, raw=raw, show_first_stage=show_first_stage)
    answer = partial(answer, prune=parse_threshold(prune, "prune"), **how)
    _run(engine, query, batch, answer, as_json, raw, trec)


def ask(
    index: opt.Existing,
    question: Annotated[str | None, Argument(help="A question.")] = None,
    k: Annotated[int, Option("-k", min=1, help="How many answers at most.")] = 3,
    batch: QueryFile = None,
    first_stage: Stage = "auto",
    candidates: Candidates = 100,
    where: Filter = None,
    cascade: opt.ReadShare = None,
    memory: opt.Memory = None,
    threshold: Annotated[
        str, Option(help="Reject answers with a lower score; auto: as learnt; 0: reject none.")
    ] = "auto",
    hops: Annotated[int, Option(min=1, help="2: follow links of the best, read together.")] = 1,
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Answer a question with spans of the passages."""
    from decoupled.search.request import parse_filter, parse_threshold

    how: Any = {"first_stage": first_stage, "candidates": candidates, "where": parse_filter(where)}
    how |= {"k": k, "threshold": parse_threshold(threshold), "hops": hops}
    engine = _engine(index, question, batch, runtime, cascade, memory)
    engine.ask("warm up", candidates=1)
    _run(engine, question, batch, partial(engine.ask, **how), as_json)


def rerank(
    query: Annotated[str, Argument(help="What to rank for; before it may stand an index.")],
    passages: Annotated[
        list[str] | None, Argument(help="Files or folders of passages; `-` or nothing reads stdin.")
    ] = None,
    model: opt.Starter = None,
    ids: Annotated[list[str] | None, Option(help="File of ids, one a line, of the index.")] = None,
    run: Annotated[str | None, Option(help="A TREC run to rerank: INDEX --run RUN.")] = None,
    queries: Annotated[str | None, Option(help="The queries of the run.")] = None,
    k: Annotated[int | None, Option("-k", min=1, help="Keep the best k.")] = None,
    raw: opt.Raw = False,
    prune: opt.Prune = None,
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Order passages by their relevance to a query."""
    from decoupled.measure.runs import read_ids, read_run, rerank_run
    from decoupled.model.folder import is_model, starter_model
    from decoupled.search.request import parse_threshold

    if bool(run) != bool(queries):
        raise InputError("--run and --queries belong together: a run, and the texts of its queries")
    how: Any = {"k": k, "raw": raw, "prune": parse_threshold(prune, "prune")}
    problems: list[Any] = []
    if run and queries:
        texts, ranked = {one.id: one.text for one in _queries(queries)}, read_run(run)
        reranked = rerank_run(dc.Engine(query, runtime=runtime), ranked, texts, **how)
        return _print_many(reranked, len(ranked), not as_json)
    # In the order of `ask`: the model of an index, or a model, before the query.
    if passages and ((Path(query) / "manifest.json").exists() or is_model(query)):
        model, query, *passages = query, *passages
    if not (passages or ids) and sys.stdin.isatty():
        raise InputError("no passages: name a file, or pipe them in as jsonl, csv or one per line")
    engine = dc.Engine(model or starter_model(), runtime=runtime)
    if ids:
        ((_, hits),) = rerank_run(engine, {query: read_ids(*ids)}, {query: query}, **how)
    else:
        stream = dc.read_passages(*(passages or ["-"]), chunk=None, report=problems.append)
        hits = engine.rerank(query, texts=list(stream), **how)
    printing.warn(*hits.notes)
    if as_json:
        printing.document(hits.to_json())
    elif len(hits):
        rows = [(printing.score(h.score, raw), h.id, h.shown_text[:300]) for h in hits]
        printing.table(("score", "id", "text"), rows)
    else:
        printing.note(f"no passages in {' '.join(map(str, problems or passages or ['stdin']))}")


def classify(
    model: Annotated[str, Option(help="Model folder, checkpoint folder or hub name.")],
    texts: Annotated[list[str] | None, Argument(help="Two texts: query and passage.")] = None,
    pairs: Annotated[str | None, Option(help="A file of pairs: jsonl, csv or tsv.")] = None,
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
    printing.warn(*filter(None, [engine.runtime.tokenizer.too_long([a for a, _ in chosen])]))
    labels = engine.classify(chosen, raw=raw)
    facts = {"labels": [label.to_json() for label in labels]}
    shown = [printing.score(label.score, raw) for label in labels]
    rows = [
        (x.label, s, a[:80], b[:80]) for x, s, (a, b) in zip(labels, shown, chosen, strict=True)
    ]
    columns = ("label", "score", "query", "passage")
    printing.result(facts, as_json, lambda _: printing.table(columns, rows))


def serve(
    index: Annotated[
        Path | None,
        Argument(metavar="INDEX", help="An index, or a model that reranks; nothing: the samples."),
    ] = None,
    host: opt.Host = "127.0.0.1",
    port: opt.Port = 8000,
    api_key_file: Annotated[
        Path | None, Option(help="Keys, one a line; needed to change the index.")
    ] = None,
    protect_reads: Annotated[bool, Option("--protect-reads", help="Queries need a key.")] = False,
    open_files: Annotated[bool, opt.rare("--open-files", help="All may open files.")] = False,
    allow_host: opt.Proxies = None,
    cors: Annotated[
        list[str] | None, Option(help="Web site whose pages may call this; repeatable.")
    ] = None,
    queue: Annotated[int, opt.rare(min=1, help="Requests that may wait.")] = 256,
    seconds: Annotated[float, opt.rare(min=0.1, help="Time limit of a request.")] = 60.0,
    documents: Annotated[int, opt.rare(min=1, help="Documents of one request.")] = 1000,
    cache: Annotated[int, opt.rare(min=0, help="MiB for states of texts that clients send.")] = 256,
    questions: Annotated[str | None, Option(help="File of questions that the page offers.")] = None,
    runtime: opt.Runtime = "auto",
    cascade: opt.ReadShare = None,
    memory: opt.Memory = None,
    workers: Annotated[int, Option(min=1, help="Processes that share the address.")] = 1,
    shards: Annotated[
        int | None, Option(min=1, help="Divide the scoring among so many Ray processes.")
    ] = None,
    replicas: Annotated[int, opt.rare(min=1, help="Processes of each shard.")] = 1,
    most_replicas: Annotated[
        int, opt.rare(min=1, help="Processes of each shard when queues grow.")
    ] = 1,
    cluster: Annotated[str, opt.rare(help="Ray cluster for --shards.")] = "local",
    log_level: Annotated[str, Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve an index over HTTP: search, ask, rerank, and a page to try it on."""
    opt.one_of("--log-level", log_level, ("debug", "info", "warning", "error"))
    from decoupled.search.late_interaction import parse_share
    from decoupled.search.starter import sample_copy, sample_questions
    from decoupled.serve.cluster.shards import Layout
    from decoupled.serve.http.limits import Limits

    offered = [query.text for query in _queries(questions)] if questions else []
    if index is None:
        offered = offered or [sample.question for sample in sample_questions()]
    layout = None
    if shards:
        divided = partial(Layout, shards=shards, replicas=replicas, runtime=runtime)
        layout = divided(memory=memory, most_replicas=max(replicas, most_replicas))

    def served() -> Path:  # called once the address is taken, so that nothing is copied in vain
        nonlocal index
        if index is None:
            printing.note(
                "serving a copy of the sample passages: what is added is gone when it stops"
            )
            index = sample_copy(_sample_index(runtime))
        if layout is not None:
            printing.note(f"starting {shards} shards of {replicas} replicas on Ray ({cluster})")
        return index

    def ready(address: str, writes: bool) -> None:
        printing.note(f"serving {index} on {address} (API: {address}/docs, stop: Ctrl-C)")
        if not writes:
            printing.note(
                "the index cannot be changed over HTTP: that needs --api-key-file on this address"
            )

    limits = Limits(queue=queue, seconds=seconds, documents=documents)
    run = partial(
        dc.serve_index, served, host=host, port=port, workers=workers, log_level=log_level
    )
    run = partial(run, api_key_file=api_key_file, protect_reads=protect_reads, limits=limits)
    run = partial(run, hosts=allow_host or (), origins=cors or (), questions=offered)
    run = partial(run, runtime=runtime, memory=memory, cache_mib=cache, layout=layout)
    run(cascade=parse_share(cascade), cluster=cluster, ready=ready, open_files=open_files)


def demo(runtime: opt.Runtime = "auto", as_json: opt.Json = False) -> None:
    """Index the sample passages once, answer the sample questions, time split and joint model."""
    from decoupled.measure.demo import demo as demo_rows
    from decoupled.measure.demo import demo_cells, demo_lines
    from decoupled.search import starter

    path = _sample_index(runtime)
    engine = starter.sample_engine(path, runtime=runtime)
    rows: list[dict[str, Any]] = []
    if as_json:
        rows += demo_rows(engine)
        printing.document({"questions": rows, "right": sum(row["correct"] for row in rows)})
        return

    def cells() -> Iterator[Sequence[str]]:
        for row in demo_rows(engine):
            rows.append(row)
            yield demo_cells(row)

    printing.table(("question", "answer", "", "split ms", "joint ms"), cells())
    printing.lines(*demo_lines(rows, len(engine.index or ())))
    printing.note(
        f'ask it yourself: decoupled ask {quote(str(path))} "When did Nikola Tesla die?"',
        "or in a browser: decoupled serve",
    )


def _sample_index(runtime: str) -> Path:
    """The index of the sample passages, built on first use."""
    from decoupled.search import starter

    with (
        starter.sample_index(runtime=runtime) as index,
        printing.corpus_bar(starter.PASSAGES.stat().st_size) as bar,
    ):
        if not len(index):
            printing.note("indexing the sample passages, once")
        index.add(starter.sample_passages(on_bytes=bar.read), progress=bar.added)
        return index.path


def _queries(batch: str) -> list[Query]:
    from decoupled.measure.pairs import read_queries

    return list(read_queries(batch))


def _print_many(
    results: Iterable[tuple[str, dc.Hits | dc.Answers]], count: int, trec: bool
) -> None:
    """Print each result as a JSON object, or as the lines of a run."""
    from decoupled.measure.runs import run_lines

    # A bar only where the lines are not seen.
    with printing.progress_bar("queries", hidden=sys.stdout.isatty()) as bar:
        for done, (query, result) in enumerate(results, 1):
            if trec and isinstance(result, dc.Hits):
                printing.warn(*result.notes)
                printing.lines(*run_lines(query, result))
            else:
                printing.document(result.to_json())
            bar.reach(done, count)


def _engine(
    index: Path,
    query: str | None,
    batch: str | None,
    runtime: str,
    cascade: str | None,
    memory: str | None,
) -> dc.Engine:
    """The engine of an index, after checking that there is at most one source of queries."""
    from decoupled.search.late_interaction import parse_share

    if query is not None and not query.strip():
        raise InputError("the query is empty; write what to look for")
    if query is None and batch is None and not sys.stdin.isatty():
        raise InputError(f"no query for {index}; write it after the index, or give --batch FILE")
    if query is not None and batch is not None:
        raise InputError(f"a query and --batch {batch} are given; leave out one of them")
    opened = dc.Index.open(index, runtime=runtime)
    return dc.Engine(opened, cascade=parse_share(cascade), memory=memory)


def _run(
    engine: dc.Engine,
    query: str | None,
    batch: str | None,
    answer: Callable[[str], dc.Hits | dc.Answers],
    as_json: bool,
    raw: bool = False,
    trec: bool = False,
) -> None:
    """Print what is answered to a query, to those of a file, one JSON object a line, or to what is typed."""
    from decoupled.search.prompt import typed_queries

    if batch is not None:
        queries = _queries(batch)
        results = ((one.id, answer(one.text)) for one in queries)
        return _print_many(results, len(queries), trec)
    for text in typed_queries() if query is None else [query]:
        result = answer(text)
        printing.warn(*result.notes)
        if as_json:
            printing.document(result.to_json())
        elif result.items:
            printing.results(result, raw)
            printing.note(str(result.timing))
        elif engine.index is not None and not len(engine.index):
            name = engine.index.location.name
            printing.note(f"{name} holds no passages; add some with: decoupled add {name} CORPUS")
        else:
            printing.note("nothing found" if isinstance(result, dc.Hits) else result.verdict)
