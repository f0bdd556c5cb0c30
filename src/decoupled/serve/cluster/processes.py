"""Workers on this machine: spawned processes, replaced when they die."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from decoupled.errors import DecoupledError
from decoupled.index.store.commit import Staged
from decoupled.model.tokens import Passage
from decoupled.serve.cluster.worker import DEPTH, Encoder, address_of, in_order

TRIES = 5
"""How often a part may take its worker down before the build stops."""

_opening: tuple[str, str] | None = None
"""The index and the runtime of this process, where it is a worker."""
_encoder: Encoder | None = None
"""The worker itself, once it has a part."""


@dataclass(eq=False)
class _Sent:
    """A part, and its way through the pool that it was last given to."""

    part: list[Passage]
    future: Future[Staged]
    tries: int = 1


class Processes:
    """Implements `Workers` with a pool of processes.

    with Processes("docs.idx", 4) as workers:
        index.add(passages, workers=workers)
    """

    def __init__(
        self, path: str | Path, count: int, *, threads: int | None = None, runtime: str = "auto"
    ) -> None:
        """`threads` of each worker; by default the cores are shared out."""
        self.count = count
        self._threads = threads or max(1, (os.cpu_count() or 1) // count)
        self._task = (address_of(path), runtime, self._threads)
        self._pool = self._fresh()
        self._sent: list[_Sent] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def stage(self, parts: Iterator[list[Passage]]) -> Iterator[list[Staged]]:
        """What became of each part, in their order."""
        return in_order(
            parts,
            send=self._send,
            is_done=lambda sent: sent.future.done(),
            result=self._result,
            ahead=DEPTH * self.count,
        )

    def _send(self, part: list[Passage]) -> _Sent:
        try:
            sent = _Sent(part, self._pool.submit(_stage, part))
        except BrokenProcessPool:
            self._replace()
            sent = _Sent(part, self._pool.submit(_stage, part))
        self._sent.append(sent)
        return sent

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
                self._replace()
            else:
                self._sent.remove(sent)
                return staged

    def _replace(self) -> None:
        """A new pool in place of one that lost a process, with everything that was on its way."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._fresh()
        for sent in self._sent:
            lost = not sent.future.done() or sent.future.cancelled()
            if lost or isinstance(sent.future.exception(), BrokenProcessPool):
                sent.future, sent.tries = self._pool.submit(_stage, sent.part), sent.tries + 1

    def _fresh(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self.count,
            # Lance's threads do not survive a fork.
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=self._task,
        )


def _begin(path: str, runtime: str, threads: int) -> None:
    global _opening
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    _opening = path, runtime


def _stage(part: list[Passage]) -> Staged:
    global _encoder
    if _encoder is None:
        # Not in `_begin`: an error there only tells the pool that a process died.
        assert _opening is not None
        _encoder = Encoder(*_opening)
    return _encoder.stage(part)
