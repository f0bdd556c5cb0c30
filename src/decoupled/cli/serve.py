"""`serve`: an index behind HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoupled.cli import printing
from decoupled.cli.demo import ready_index
from decoupled.cli.runtimes import Runtime
from decoupled.cli.search import CascadeShare, Memory, parse_cascade, queries
from decoupled.errors import InputError

if TYPE_CHECKING:
    from decoupled.search.engine import Engine


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(serve)


def serve(
    index: Annotated[
        Path | None,
        typer.Argument(
            metavar="INDEX",
            help="An index; a model folder reranks only; nothing serves the sample passages.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option(help="Keys, one a line; needed to change the index.")
    ] = None,
    protect_reads: Annotated[
        bool, typer.Option("--protect-reads", help="Ask for a key for queries too.")
    ] = False,
    cors: Annotated[
        list[str] | None,
        typer.Option(help="A web site whose pages may call this server; may be repeated."),
    ] = None,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait.")] = 256,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time limit of a request.")] = 60.0,
    documents: Annotated[int, typer.Option(min=1, help="Documents of one request.")] = 1000,
    cache: Annotated[
        int, typer.Option(min=0, help="MiB in which states of texts that clients send are kept.")
    ] = 256,
    questions: Annotated[
        str | None, typer.Option(help="A file of questions that the page offers (jsonl, txt, tsv).")
    ] = None,
    runtime: Runtime = "auto",
    cascade: CascadeShare = None,
    memory: Memory = None,
    shards: Annotated[
        int | None, typer.Option(min=1, help="Divide the scoring among so many Ray processes.")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Processes of each shard.")] = 1,
    most_replicas: Annotated[
        int, typer.Option(min=1, help="Processes of each shard when queues grow.")
    ] = 1,
    cluster: Annotated[
        str, typer.Option(help="Address of the Ray cluster for --shards; `local` starts one.")
    ] = "local",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve an index over HTTP: search, ask, rerank, and a page to try it on."""
    if log_level not in ("debug", "info", "warning", "error"):
        raise InputError(f"--log-level is {log_level!r}; choose debug, info, warning or error")
    if protect_reads and api_key_file is None:
        raise InputError("--protect-reads needs --api-key-file")
    from decoupled.runtime.open import check_name
    from decoupled.search import starter
    from decoupled.serve.http.app import create_app
    from decoupled.serve.http.limits import Access, Limits, is_local, read_keys
    from decoupled.serve.http.server import bind, listen

    check_name(runtime)
    keys = read_keys(api_key_file) if api_key_file else ()
    writes = bool(keys) or is_local(host)
    taken = bind(host, port)
    offered = queries(questions) if questions else []
    if index is None:
        index = ready_index(runtime)
        offered = offered or [sample.question for sample in starter.sample_questions()]
    single = {"cascade": parse_cascade(cascade), "memory": memory, "remember": cache << 20}
    if shards is not None and cascade is not None:
        raise InputError(
            "--cascade compares all candidates, which no shard has; leave out one of the two"
        )
    layout = (shards or 0, replicas, most_replicas, memory)
    with (
        many_engines(index, layout, cluster, seconds, runtime)
        if shards is not None
        else one_engine(index, runtime, single)
    ) as engine:
        _ = engine.runtime  # load now: a server that listens is ready
        app = create_app(
            engine,
            limits=Limits(queue=queue, seconds=seconds, documents=documents),
            access=Access(keys=keys, protect_reads=protect_reads, writes=writes),
            origins=cors or (),
            questions=offered,
        )
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{taken.getsockname()[1]}"
        printing.note(f"serving {index} on {address} (API: {address}/docs, stop: Ctrl-C)")
        if not writes:
            printing.note(
                "the index cannot be changed over HTTP: that needs --api-key-file on this address"
            )
        listen(app, taken, level=log_level)


@contextmanager
def one_engine(index: Path, runtime: str, options: dict[str, Any]) -> Iterator[Engine]:
    """An engine of this process."""
    from decoupled.index.index import Index
    from decoupled.model.folder import is_model
    from decoupled.search.engine import Engine

    source = index if is_model(index) else Index.open(index, runtime=runtime)
    engine = Engine(source, runtime=runtime, **options)
    _ = engine.runtime
    if options["memory"] is not None and engine.index is not None:
        engine.warm()
    yield engine


@contextmanager
def many_engines(
    index: Path,
    counts: tuple[int, int, int, str | None],
    cluster: str,
    seconds: float,
    runtime: str,
) -> Iterator[Engine]:
    """Shards on a Ray cluster, behind one engine; a query leaves time to answer without a lost one."""
    from decoupled.serve.cluster.engine import SECONDS
    from decoupled.serve.cluster.shards import Layout, deployed

    shards, replicas, most, memory = counts
    layout = Layout(
        shards=shards,
        replicas=replicas,
        most_replicas=max(replicas, most),
        memory=memory,
        runtime=runtime,
    )
    printing.note(f"starting {shards} shards of {replicas} replicas on Ray ({cluster})")
    limit = min(SECONDS, 0.8 * seconds)
    with deployed(index, layout, cluster=cluster, seconds=limit) as engine:
        yield engine
