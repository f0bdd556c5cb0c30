"""`serve_index`: an index behind HTTP, by one engine of this process or by shards on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from decoupled.errors import OptionError
from decoupled.index.index import Index
from decoupled.model.folder import is_model
from decoupled.runtime.open import check_name
from decoupled.search.engine import Engine
from decoupled.serve.cluster.engine import SECONDS
from decoupled.serve.cluster.shards import Layout, deployed
from decoupled.serve.http.app import create_app
from decoupled.serve.http.limits import Access, Limits, is_local, read_keys
from decoupled.serve.http.server import bind, listen


def serve_index(  # noqa: PLR0913 (the options of a server)
    index: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_file: str | Path | None = None,
    protect_reads: bool = False,
    origins: Sequence[str] = (),
    limits: Limits = Limits(),
    questions: Sequence[str] = (),
    runtime: str = "auto",
    cascade: float | Literal["auto"] | None = None,
    memory: str | None = None,
    cache_mib: int = 256,
    layout: Layout | None = None,
    cluster: str = "local",
    log_level: str = "info",
    ready: Callable[[str, bool], None] = lambda address, writes: None,
) -> None:
    """Serve an index, or a model folder that reranks only, over HTTP until a signal comes.

    `api_key_file` has keys, one a line, without which only a server of this machine changes its index.
    `origins` are web sites whose pages may call it, `questions` what its own page offers. A `layout` divides
    the scoring among processes of the Ray cluster at that address. `ready` is told the address, and
    whether the index can be changed, when the server is about to listen.
    """
    if protect_reads and api_key_file is None:
        raise OptionError("--protect-reads needs --api-key-file")
    check_name(runtime)
    keys = read_keys(Path(api_key_file)) if api_key_file else ()
    writes = bool(keys) or is_local(host)
    taken = bind(host, port)
    if layout is not None and cascade is not None:
        raise OptionError(
            "--cascade compares all candidates, which no shard has; leave out one of the two"
        )
    with (
        # A query leaves time to answer without a shard that was lost.
        deployed(index, layout, cluster=cluster, seconds=min(SECONDS, 0.8 * limits.seconds))
        if layout is not None
        else _one_engine(index, runtime, cascade, memory, cache_mib)
    ) as engine:
        _ = engine.runtime  # load now: a server that listens is ready
        app = create_app(
            engine,
            limits=limits,
            access=Access(keys=keys, protect_reads=protect_reads, writes=writes),
            origins=origins,
            questions=questions,
        )
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{taken.getsockname()[1]}", writes)
        listen(app, taken, level=log_level)


@contextmanager
def _one_engine(
    index: str | Path,
    runtime: str,
    cascade: float | Literal["auto"] | None,
    memory: str | None,
    cache_mib: int,
) -> Iterator[Engine]:
    source = index if is_model(index) else Index.open(index, runtime=runtime)
    engine = Engine(
        source, runtime=runtime, cascade=cascade, memory=memory, remember=cache_mib << 20
    )
    _ = engine.runtime
    if memory is not None and engine.index is not None:
        engine.warm()
    yield engine
