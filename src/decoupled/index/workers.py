"""Workers of a build encode parts and write them, in processes of this machine."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from decoupled.errors import DecoupledError, InputError
from decoupled.index.index import Index
from decoupled.index.ingest import Workers
from decoupled.index.store.base import Staged
from decoupled.index.store.location import location_of
from decoupled.model.tokens import Passage

AHEAD = 3
"""Parts for each worker that may be under way at once; their texts wait in memory."""
TRIES = 5
"""How often a part may take its worker down before the build stops."""


@contextmanager
def open_workers(
    path: str | Path, *, cluster: str | None, count: int | None, runtime: str = "auto"
) -> Iterator[Workers | None]:
    """Workers for the index at `path`; None where neither a cluster nor several workers are wanted.

    Every worker must reach the path: on several machines it is a shared folder or an object store. Ray is for
    those who name a `cluster`; what speaks to it stands in a room above, and is loaded by its name then.
    """
    if count is not None and count < 1:
        raise InputError(f"{count} workers; expected 1 or more")
    if cluster is not None:
        ray = import_module("decoupled.serve.cluster.workers")
        with ray.cluster_workers(path, cluster, count, runtime=runtime) as actors:
            yield actors
    elif count is not None and count > 1:
        with Processes(path, count, runtime=runtime) as processes:
            yield processes
    else:
        yield None


class Encoder:
    """The index of a worker: opened for reading, since staging a part needs no lock."""

    def __init__(self, path: str, runtime: str = "auto") -> None:
        self._index = Index.open(path, runtime=runtime)

    def stage(self, passages: Sequence[Passage]) -> Staged:
        """Encode a part and write it; one that is staged twice lies there twice, and one is committed."""
        return self._index.stage(passages)


def in_order(
    parts: Iterator[list[Passage]],
    send: Callable[[list[Passage]], Any],
    is_done: Callable[[Any], bool],
    result: Callable[[Any], Staged],
    ahead: int,
) -> Iterator[list[Staged]]:
    """Yield results in the order of the parts, at most `ahead` of which are sent and not yet given."""
    waiting = [send(part) for part in islice(parts, ahead)]
    while waiting:
        ready = [result(waiting.pop(0))]
        # Whatever else is ready goes into the same commit.
        while waiting and is_done(waiting[0]):
            ready.append(result(waiting.pop(0)))
        waiting += [send(part) for part in islice(parts, ahead - len(waiting))]
        yield ready


@dataclass(eq=False)
class _Sent:
    """A part, and the future of its result in the pool that works on it."""

    part: list[Passage]
    future: Future[Staged] = field(default_factory=Future)
    tries: int = 0


class Processes(AbstractContextManager["Processes"]):
    """Implements `Workers` with spawned processes, replaced when they die.

    with Processes("docs.idx", 4) as workers:
        index.add(passages, workers=workers)
    """

    def __init__(
        self, path: str | Path, count: int, *, threads: int | None = None, runtime: str = "auto"
    ) -> None:
        """Start `count` processes of `threads` threads each; by default the cores are shared out."""
        self._ahead = AHEAD * count
        self._source = location_of(path).address, runtime
        self._open_pool = partial(
            ProcessPoolExecutor,
            count,
            # Lance's threads do not survive a fork.
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_limit_threads,
            initargs=(threads or max(1, (os.cpu_count() or 1) // count),),
        )
        self._pool = self._open_pool()
        self._sent: list[_Sent] = []

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error nobody will commit what is on its way, so it is not waited for.
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def stage(self, parts: Iterator[list[Passage]]) -> Iterator[list[Staged]]:
        """Yield the staged parts in their order, those that are ready together."""
        return in_order(parts, self._send, lambda s: s.future.done(), self._result, self._ahead)

    def _send(self, part: list[Passage]) -> _Sent:
        sent = _Sent(part)
        self._sent.append(sent)
        try:
            self._submit(sent)
        except BrokenProcessPool:
            # The part is in `_sent` already, so the new pool gets it with the others.
            self._replace_pool()
        return sent

    def _submit(self, sent: _Sent) -> None:
        sent.future = self._pool.submit(_stage, *self._source, sent.part)
        sent.tries += 1

    def _result(self, sent: _Sent) -> Staged:
        while True:
            try:
                staged = sent.future.result()
            except BrokenProcessPool:
                if sent.tries >= TRIES:
                    raise DecoupledError(
                        f"a worker died {TRIES} times over the passages from {sent.part[0].id!r} on; "
                        "is memory short? Use fewer workers"
                    ) from None
                self._replace_pool()
            else:
                self._sent.remove(sent)
                return staged

    def _replace_pool(self) -> None:
        """Start a new pool in place of one that lost a process, and send it every unfinished part."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._open_pool()
        for sent in self._sent:
            lost = not sent.future.done() or sent.future.cancelled()
            if lost or isinstance(sent.future.exception(), BrokenProcessPool):
                self._submit(sent)


def _limit_threads(threads: int) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)


# Opened with the first part: an error while a process starts would only say that it died.
_encoder = cache(Encoder)


def _stage(path: str, runtime: str, part: list[Passage]) -> Staged:
    return _encoder(path, runtime).stage(part)
