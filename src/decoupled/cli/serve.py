"""`serve`: an index behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.cli.demo import sample_index
from decoupled.cli.search import queries


def serve(
    index: Annotated[
        Path | None,
        Argument(
            metavar="INDEX",
            help="An index; a model folder reranks only; nothing serves the sample passages.",
        ),
    ] = None,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    api_key_file: Annotated[
        Path | None, Option(help="Keys, one a line; needed to change the index.")
    ] = None,
    protect_reads: Annotated[
        bool, Option("--protect-reads", help="Ask for a key for queries too.")
    ] = False,
    cors: Annotated[
        list[str] | None,
        Option(help="A web site whose pages may call this server; may be repeated."),
    ] = None,
    queue: Annotated[int, Option(min=1, help="Requests that may wait.")] = 256,
    seconds: Annotated[float, Option(min=0.1, help="Time limit of a request.")] = 60.0,
    documents: Annotated[int, Option(min=1, help="Documents of one request.")] = 1000,
    cache: Annotated[
        int, Option(min=0, help="MiB in which states of texts that clients send are kept.")
    ] = 256,
    questions: Annotated[
        str | None, Option(help="A file of questions that the page offers (jsonl, txt, tsv).")
    ] = None,
    runtime: opt.Runtime = "auto",
    cascade: opt.CascadeShare = None,
    memory: opt.Memory = None,
    shards: Annotated[
        int | None, Option(min=1, help="Divide the scoring among so many Ray processes.")
    ] = None,
    replicas: Annotated[int, Option(min=1, help="Processes of each shard.")] = 1,
    most_replicas: Annotated[
        int, Option(min=1, help="Processes of each shard when queues grow.")
    ] = 1,
    cluster: Annotated[
        str, Option(help="Address of the Ray cluster for --shards; `local` starts one.")
    ] = "local",
    log_level: Annotated[str, Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve an index over HTTP: search, ask, rerank, and a page to try it on."""
    opt.one_of("--log-level", log_level, ("debug", "info", "warning", "error"))
    from decoupled.runtime.open import check_name
    from decoupled.search.starter import sample_questions
    from decoupled.serve.cluster.shards import Layout
    from decoupled.serve.http.limits import Limits

    check_name(runtime)
    offered = queries(questions) if questions else []
    if index is None:
        offered = offered or [sample.question for sample in sample_questions()]
    layout = None
    if shards is not None:
        layout = Layout(
            shards=shards,
            replicas=replicas,
            most_replicas=max(replicas, most_replicas),
            memory=memory,
            runtime=runtime,
        )

    def served() -> Path:
        nonlocal index
        index = index or sample_index(runtime)
        if layout is not None:
            printing.note(f"starting {shards} shards of {replicas} replicas on Ray ({cluster})")
        return index

    def ready(address: str, writes: bool) -> None:
        printing.note(f"serving {index} on {address} (API: {address}/docs, stop: Ctrl-C)")
        if not writes:
            printing.note(
                "the index cannot be changed over HTTP: that needs --api-key-file on this address"
            )

    dc.serve_index(
        served,
        host=host,
        port=port,
        api_key_file=api_key_file,
        protect_reads=protect_reads,
        origins=cors or (),
        limits=Limits(queue=queue, seconds=seconds, documents=documents),
        questions=offered,
        runtime=runtime,
        cascade=opt.cascade_share(cascade),
        memory=memory,
        cache_mib=cache,
        layout=layout,
        cluster=cluster,
        log_level=log_level,
        ready=ready,
    )
