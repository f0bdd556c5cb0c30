"""Several processes behind one address, each with an engine of its own; the first process watches over them.

The kernel divides the connections among their sockets, which the first process keeps open: those that wait
for a process that died are taken by the one that follows it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from logging.config import dictConfig
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from prometheus_client.multiprocess import mark_process_dead

from decoupled.errors import DecoupledError
from decoupled.runtime.cpu import THREADS, cores
from decoupled.serve.cluster.ray import environment
from decoupled.serve.http.metrics import SHARED
from decoupled.serve.http.server import GRACE, Served, log_config

_log = logging.getLogger(__name__)

LONGEST = 30.0
"""Seconds before a worker that dies again and again is started once more; at first it is one."""
WRITER_SECONDS = 20.0
"""Seconds that a change waits for that of another worker."""


def supervise(
    served: Served, taken: socket.socket, workers: int, ready: Callable[[], None]
) -> None:
    """Serve by `workers` processes until a signal; `ready` is called when all of them listen."""
    dictConfig(log_config(served.log_level))
    memory = served.memory and max(1, served.memory // workers)
    limits = replace(served.limits, writer_seconds=min(WRITER_SECONDS, served.limits.seconds / 2))
    share = replace(served, memory=memory, cache=served.cache // workers, limits=limits)
    stop, wake = get_context("spawn").Pipe()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: wake.send(None))
    with tempfile.TemporaryDirectory() as folder:
        shared = {SHARED: folder, THREADS: str(max(1, cores() // workers))}
        team = [ServerProcess(share, own, shared) for own in sockets(taken, workers)]
        try:
            for worker in team:
                worker.start()
            if all(worker.is_ready(stop) for worker in team):
                ready()
                _watch(team, stop)
        finally:
            for worker in team:
                # All are told before any is waited for, so that they finish at the same time.
                worker.process.terminate()
            for worker in team:
                worker.end()


def _watch(team: list[ServerProcess], stop: Connection) -> None:
    """Start processes that die again, until a signal comes."""
    while stop not in (fired := wait([stop, *(worker.process.sentinel for worker in team)])):
        for worker in (worker for worker in team if worker.process.sentinel in fired):
            # Waits before the restart, unless a signal comes first.
            if stop.poll(worker.died()):
                return
            worker.start()


class ServerProcess:
    """One process, and those that follow it on the same socket."""

    def __init__(self, served: Served, taken: socket.socket, shared: dict[str, str]) -> None:
        self._served, self._taken, self._shared = served, taken, shared
        self._delay = 0.5

    def start(self) -> None:
        """Start a process that loads the engine and then listens."""
        self._begun = time.monotonic()
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        with environment(self._shared):
            self.process: SpawnProcess = context.Process(
                target=work, args=(self._served, self._taken, theirs)
            )
            self.process.start()
        # Only the child holds this end now, so that its death ends the pipe.
        theirs.close()

    def is_ready(self, stop: Connection) -> bool:
        """Wait until it listens; False if a signal came first. What keeps it from starting is raised."""
        if stop in wait([stop, self._pipe]):
            return False
        if fault := self._message():
            raise DecoupledError(fault)
        return True

    def died(self) -> float:
        """Log that the process died; returns the seconds to wait before the next, more after early deaths."""
        # It may have said that it listens before it died.
        while (fault := self._message()) is None:
            pass
        soon = time.monotonic() - self._begun < LONGEST
        self._delay = min(LONGEST, 2 * self._delay) if soon else 1.0
        _log.error("%s; another one starts in %g s", fault, self._delay)
        mark_process_dead(self.process.pid, self._shared[SHARED])  # type: ignore[no-untyped-call]
        return self._delay

    def _message(self) -> str | None:
        """The next message of the process: None when it listens, else why it does not."""
        try:
            message: str | None = self._pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return f"worker {self.process.pid} ended with exit code {self.process.exitcode}"
        return message

    def end(self) -> None:
        """Wait until it has answered what it accepted."""
        self.process.join(GRACE + 10)
        if self.process.is_alive():
            self.process.kill()


def work(served: Served, taken: socket.socket, parent: Connection) -> None:
    """Run a worker: it sends None when it listens, or an error message, and stops if its parent dies."""

    def outlive() -> None:
        try:
            parent.recv()
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=outlive, daemon=True).start()
    try:
        served.run(taken, lambda: parent.send(None))
    except DecoupledError as error:
        parent.send(str(error))
        sys.exit(1)


def sockets(taken: socket.socket, count: int) -> list[socket.socket]:
    """One socket for each process at one address; one for all where the kernel cannot divide connections."""
    if sys.platform != "linux":
        return [taken] * count
    # Only now: it was bound without, so that no other server can hold the address.
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    others = [socket.socket(taken.family, taken.type, taken.proto) for _ in range(count - 1)]
    for other in others:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(taken.getsockname())
    return [taken, *others]
