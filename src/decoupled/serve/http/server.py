"""`serve_index`: an index behind HTTP by uvicorn; a stop finishes what was accepted."""

import ctypes
import gc
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Literal

import uvicorn
from starlette.applications import Starlette

from decoupled.errors import InputError, OptionError
from decoupled.index.index import Index
from decoupled.index.store.state_cache import parse_bytes
from decoupled.model.folder import is_model
from decoupled.model.jsonable import JsonObject
from decoupled.runtime.open import check_name
from decoupled.search.engine import Engine
from decoupled.serve.cluster.engine import SECONDS
from decoupled.serve.cluster.shards import Layout, deployed
from decoupled.serve.http.app import create_app
from decoupled.serve.http.connections import ACCEPTED, Connection, Gate
from decoupled.serve.http.limits import SOURCE, Access, Limits, host_name, is_local, read_keys
from decoupled.serve.live import ask_once

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
WAITING = 2048
"""Connections that may wait to be accepted."""
SWITCH = 0.0005
"""Seconds for which a thread keeps Python's lock; by default ten times as many."""
GRACE = 30
"""Seconds that a stop waits for answers that are under way."""


def serve_index(  # noqa: PLR0913 (the options of a server)
    index: str | Path | Callable[[], str | Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_file: str | Path | None = None,
    protect_reads: bool = False,
    open_files: bool = False,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    limits: Limits = Limits(),
    questions: Sequence[str] = (),
    runtime: str = "auto",
    cascade: float | Literal["all"] | None = None,
    memory: str | None = None,
    cache_mib: int = 256,
    workers: int = 1,
    layout: Layout | None = None,
    cluster: str = "local",
    log_level: str = "info",
    ready: Callable[[str, bool], None] = lambda address, writes: None,
) -> None:
    """Serve an index, or a model folder that reranks only, over HTTP until a signal comes.

    A function as `index` is called for it once the address is taken, so that nothing is built in vain.
    `api_key_file` has keys, one a line, without which only a server of this machine changes its index.
    `hosts` are names under which it is asked without a key; of a server on localhost only its own are.
    Such a server opens the files of hits for this machine; with `open_files`, any does for all who may query.
    `origins` are web sites whose pages may call it, `questions` what its own page offers. `workers` processes
    share the address, the cores and the budgets of memory. A `layout` divides the scoring among processes
    of the Ray cluster at that address. `ready` is told the address, and whether the index can be changed,
    when the server is about to listen.
    """
    if protect_reads and api_key_file is None:
        raise OptionError("protect_reads", "needs a file of keys (api_key_file)")
    if layout is not None and workers > 1:
        raise OptionError("workers", "and shards both divide the work; leave out one of the two")
    if layout is not None and cascade not in (None, 1.0, "all"):
        raise OptionError(
            "cascade", "compares all candidates, which no shard has; leave out one of the two"
        )
    check_name(runtime)
    keys = read_keys(Path(api_key_file)) if api_key_file else ()
    writes = bool(keys) or is_local(host)
    named = tuple(map(host_name, hosts)) or (() if is_local(host) else ("*",))
    taken = bind(host, port)
    served = Served(
        place=index() if callable(index) else index,
        limits=limits,
        access=Access(
            keys=keys,
            protect_reads=protect_reads,
            writes=writes,
            hosts=named,
            files="all" if open_files else "local" if is_local(host) else "none",
        ),
        origins=tuple(origins),
        questions=tuple(questions),
        runtime=runtime,
        cascade=cascade,
        memory=None if memory is None else parse_bytes(memory),
        cache=cache_mib << 20,
        layout=layout,
        cluster=cluster,
        log_level=log_level,
    )
    shown = f"[{host}]" if ":" in host else host
    announce = partial(ready, f"http://{shown}:{taken.getsockname()[1]}", writes)
    if workers == 1:
        served.run(taken, announce)
    else:
        from decoupled.serve.http.workers import supervise

        supervise(served, taken, workers, announce)


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a process serves, and how: plain data, so that it can be sent to other processes."""

    place: str | Path
    limits: Limits
    access: Access
    origins: tuple[str, ...]
    questions: tuple[str, ...]
    runtime: str
    cascade: float | Literal["all"] | None
    memory: int | None
    cache: int
    layout: Layout | None
    cluster: str
    log_level: str

    def run(self, taken: socket.socket, ready: Callable[[], None]) -> None:
        """Serve until a signal; `ready` is called when everything is loaded."""
        running: AbstractContextManager[Engine]
        if self.layout is not None:
            # A query leaves time to answer without a shard that was lost.
            seconds = min(SECONDS, 0.8 * self.limits.seconds)
            running = deployed(self.place, self.layout, cluster=self.cluster, seconds=seconds)
        else:
            place, runtime = self.place, self.runtime
            source = place if is_model(place) else Index.open(place, runtime=runtime)
            kept = {"cascade": self.cascade, "memory": self.memory, "remember": self.cache}
            running = nullcontext(Engine(source, runtime=runtime, **kept))  # type: ignore[arg-type]
        with running as engine:
            # Paths of this machine are for those who sit at it.
            engine.route = SOURCE if self.access.files == "all" else ""
            engine.links = bool(engine.route) or is_local(str(taken.getsockname()[0]))
            _ = engine.runtime  # load now: a server that listens is ready
            if self.memory is not None and self.layout is None and engine.index is not None:
                engine.warm()
            if self.layout is None:
                ask_once(engine)
            app = create_app(
                engine,
                limits=self.limits,
                access=self.access,
                origins=self.origins,
                questions=self.questions,
            )
            ready()
            listen(app, taken, limits=self.limits, level=self.log_level)


class JsonLines(logging.Formatter):
    """One JSON object a line; times are UTC."""

    FIELDS = ("request_id", "method", "route", "status", "ms")

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        time = datetime.fromtimestamp(record.created, timezone.utc)
        line: JsonObject = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in self.FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_config(level: str) -> JsonObject:
    """Settings for `logging.config.dictConfig` that write JSON lines to stderr."""
    handler = {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonLines}},
        "handlers": {"stderr": handler},
        "loggers": {
            name: {"handlers": ["stderr"], "level": least, "propagate": False}
            for name, least in (
                ("decoupled", level.upper()),
                *(("uvicorn", "WARNING"), ("py.warnings", "WARNING")),
            )
        },
    }


def bind(host: str, port: int) -> socket.socket:
    """Take an address, without listening yet; port 0 takes any that is free."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        taken = socket.socket(family, kind, number)
    except OSError as error:
        raise InputError(f"{host} is no address of this machine ({error.strerror})") from None
    try:
        # A server that starts again need not wait for the last connections of the one before.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        taken.close()
        raise InputError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another host or port"
        ) from None
    return taken


class Server(uvicorn.Server):
    """uvicorn, with bounds on its connections."""

    def __init__(
        self, app: Starlette, *, limits: Limits = Limits(), log: JsonObject | None = None
    ) -> None:
        config = uvicorn.Config(
            app,
            http=partial(Connection, gate=Gate(limits)),  # type: ignore[arg-type]  # makes a protocol
            ws="none",
            log_config=log,
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=GRACE,
            backlog=ACCEPTED,
        )
        super().__init__(config)
        # Each line of a log is JSON, also where a library warns.
        logging.captureWarnings(log is not None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. asyncio has one number for how many may wait and how many it accepts at once."""
        await super().startup(sockets)
        for taken in sockets or ():
            taken.listen(WAITING)


def listen(
    app: Starlette, taken: socket.socket, *, limits: Limits = Limits(), level: str = "info"
) -> None:
    """Serve until a signal; then answer what was accepted, and return."""
    server = Server(app, limits=limits, log=log_config(level))
    # Large blocks go back when freed: glibc would keep ever more of them, as batches vary in size.
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(option, 1 << 20)
    # What is loaded stays: to look through it for garbage would stop the server for 0.1 s.
    gc.collect()
    gc.freeze()
    # While a thread computes in Python, each read of a socket waits so long for the interpreter.
    sys.setswitchinterval(SWITCH)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again when it is done, for whoever handled it before: us.
        signal.signal(number, lambda *_: None)
    server.run(sockets=[taken])
