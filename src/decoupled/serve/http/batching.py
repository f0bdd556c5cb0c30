"""One small batcher: requests that wait while others are computed are computed together next.

Nobody waits for company. A batch is what has gathered, up to a budget of tokens; each request has one future.
Where the model takes several callers, as many batches are computed side by side.
One whose client has left is not computed, and a batch that nobody waits for any more is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from decoupled.runtime.base import Cancelled
from decoupled.search.answers import Outcome
from decoupled.search.engine import Engine
from decoupled.search.request import Request
from decoupled.serve.http.metrics import Metrics
from decoupled.serve.http.responses import RequestProblem

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

IsCancelled = Callable[[], bool]
"""Says whether all clients of the batch that is being computed have left; any thread may call it."""
LEAST_BUDGET = 128
"""Padded tokens below which a smaller batch helps no more."""


@dataclass(eq=False)
class _Waiting(Generic[T, R]):
    item: T
    weight: int
    future: asyncio.Future[tuple[R, float]]
    since: float


class Batcher(Generic[T, R]):
    """Runs what is submitted in threads of its own, in order, as much at a time as the budget allows."""

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[T], IsCancelled], Sequence[R | Exception]],
        *,
        budget: int,
        queue: int,
        metrics: Metrics,
        threads: int = 1,
    ) -> None:
        self.name, self._run, self._most = name, run, threads
        self._budget, self._queue, self._metrics = budget, queue, metrics
        self._waiting: deque[_Waiting[T, R]] = deque()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._working: set[asyncio.Task[None]] = set()
        # Seconds of work for a request, a running mean: it tells refused clients when to come back.
        self._pace = 0.05
        self._closed = False

    async def submit(self, item: T, *, weight: int, seconds: float) -> tuple[R, float]:
        """The item's result and the seconds it waited, or its error as a `RequestProblem`."""
        depth = self._depth()
        if depth >= self._queue or self._closed:
            message = "too many requests are waiting; try again later"
            after = {"retry-after": str(max(1, round(depth * self._pace)))}
            raise RequestProblem(503, message, kind="overloaded", headers=after)
        future: asyncio.Future[tuple[R, float]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(item, weight, future, time.perf_counter()))
        self._depth()
        if len(self._working) < self._most:
            task = asyncio.create_task(self._work())
            self._working.add(task)
            task.add_done_callback(self._working.discard)
        try:
            return await asyncio.wait_for(future, seconds)
        except (TimeoutError, asyncio.TimeoutError):
            limit = f"no result within this server's limit seconds = {seconds:g}"
            message = f"{limit}; send less, or try again when there is less to do"
            raise RequestProblem(504, message, kind="timeout") from None
        finally:
            self._depth()

    async def close(self) -> None:
        """Refuse new requests, and finish those that were accepted."""
        self._closed = True
        await asyncio.gather(*self._working)
        self._threads.shutdown()

    async def _work(self) -> None:
        """Compute batches until nothing waits."""
        while batch := self._take():
            begun = time.perf_counter()
            outcomes = await self._outcomes(batch)
            worked = time.perf_counter() - begun
            self._pace = 0.8 * self._pace + 0.2 * worked / (len(batch) * len(self._working))
            self._metrics.batch(self.name, len(batch), worked)
            for waiting, outcome in zip(batch, outcomes, strict=True):
                # Its client left meanwhile, or its time was up.
                if waiting.future.done():
                    continue
                if isinstance(outcome, Exception):
                    waiting.future.set_exception(outcome)
                else:
                    waiting.future.set_result((outcome, begun - waiting.since))

    async def _outcomes(self, batch: list[_Waiting[T, R]]) -> Sequence[R | Exception]:
        def cancelled() -> bool:
            return all(w.future.done() for w in batch)

        loop, items = asyncio.get_running_loop(), [w.item for w in batch]
        try:
            return await loop.run_in_executor(self._threads, self._run, items, cancelled)
        except Exception as error:
            return [error] * len(batch)

    def _take(self) -> list[_Waiting[T, R]]:
        """The next batch: at least one item, then those that fit the budget, in order of arrival.

        What waits is shared among the threads, so that none is left without work.
        """
        batch: list[_Waiting[T, R]] = []
        # Divided by the threads and rounded up.
        room, share = self._budget, -(-len(self._waiting) // self._most)
        while self._waiting and len(batch) < share:
            first = self._waiting[0]
            if not first.future.done():
                if batch and first.weight > room:
                    break
                room -= first.weight
                batch.append(first)
            self._waiting.popleft()
        self._depth()
        return batch

    def _depth(self) -> int:
        """How many wait, without those whose clients have left."""
        depth = sum(not w.future.done() for w in self._waiting)
        self._metrics.depth.labels(self.name).set(depth)
        return depth


def run_requests(
    engine: Engine,
    requests: Sequence[Request],
    cancelled: IsCancelled,
    metrics: Metrics,
    budget: int | None = None,
) -> list[Outcome]:
    """Run requests and return their outcomes in order.

    Where memory is short the batch is halved; an error of one request is not that of the others.
    """
    try:
        return engine.run(requests, budget=budget, cancelled=cancelled)
    except Cancelled:
        raise
    except Exception as error:
        # torch says with errors of its own that memory is short.
        short = isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError)
            and re.search("out of memory|can't allocate memory", str(error).lower()) is not None
        )
        # Halving finds the one request that fails, and lets the others through.
        if len(requests) > 1:
            if short:
                metrics.retries.inc()
            half = len(requests) // 2
            return [
                *run_requests(engine, requests[:half], cancelled, metrics, budget),
                *run_requests(engine, requests[half:], cancelled, metrics, budget),
            ]
        smaller = (budget or engine.runtime.token_budget) // 2
        if short and smaller >= LEAST_BUDGET:
            metrics.retries.inc()
            return run_requests(engine, requests, cancelled, metrics, smaller)
        if short:
            return [MemoryError()]
        _log.exception("a request failed")
        return [error]
