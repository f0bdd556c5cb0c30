"""One small batcher: requests that wait while others are computed are computed together next.

Nobody waits for company. A batch is what has gathered, up to a budget of tokens; each request has one future.
What cannot be done in time, by the tokens that wait and the pace so far, is refused at once and not when its
time is up.
Where the model takes several callers, as many batches are computed side by side.
One whose client has left is not computed, and a batch that nobody waits for any more is cancelled.
"""

import asyncio
import logging
import os
import re
import threading
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
from decoupled.serve.http.limits import Limits
from decoupled.serve.http.metrics import Metrics
from decoupled.serve.http.responses import RequestProblem

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

IsCancelled = Callable[[], bool]
"""Says whether all clients of the batch that is being computed have left; any thread may call it."""
LEAST_BUDGET = 128
"""Padded tokens below which a smaller batch helps no more."""
PACE = 1 / (100_000 * (os.cpu_count() or 1))
"""Seconds for a token, until it is known: a guess that refuses little."""
SLOWEST = 100 * PACE
"""Seconds for a token that are believed at most: after a disk that hung once, not all are refused."""


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
        limits: Limits,
        metrics: Metrics,
        queue: int | None = None,
        patience: float | None = None,
        pace: float = PACE,
        threads: int = 1,
    ) -> None:
        """`patience` is how many seconds of work may wait; by default, as many as a request may take."""
        self.name, self._run, self._most = name, run, threads
        self._limits, self._metrics = limits, metrics
        self._queue = limits.queue if queue is None else queue
        self._patience = limits.seconds if patience is None else patience
        self._waiting: deque[_Waiting[T, R]] = deque()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._working: set[asyncio.Task[None]] = set()
        self._computing = 0
        """Tokens of the batches that are being computed."""
        self._pace = pace
        """Seconds of work for a token: the ratio of running means, so that large batches count more."""
        self._mean_weight = float(limits.batch_tokens)
        self._closed = False
        self.idle = threading.Event()
        """Set while nothing waits or is computed."""
        self.idle.set()

    def check(self, weight: int, seconds: float) -> None:
        """Raise a `RequestProblem` where one more request of so many tokens could not be done in time."""
        depth, tokens = self._depth(), self._tokens()
        work, wait = weight * self._pace, tokens * self._pace
        if work > seconds:
            message = (
                f"the request is about {weight:,} tokens, some {work:.0f} seconds of work here"
            )
            limit = f"this server's limit seconds is {seconds:g}: send fewer or shorter texts"
            raise RequestProblem(422, f"{message}; {limit}", kind="limit")
        beyond = tokens and tokens + weight > self._limits.tokens_in_flight
        late = wait > self._patience or wait + work > seconds
        if depth >= self._queue or beyond or late or self._closed:
            if weight:
                self._metrics.shed.labels(self.name).inc()
            message = "too many requests are waiting; try again later"
            after = {"retry-after": str(max(1, round(wait)))}
            raise RequestProblem(503, message, kind="overloaded", headers=after)

    async def submit(self, item: T, *, weight: int, seconds: float) -> tuple[R, float]:
        """The item's result and the seconds it waited, or its error as a `RequestProblem`."""
        self.check(weight, seconds)
        self.idle.clear()
        future: asyncio.Future[tuple[R, float]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(item, weight, future, time.perf_counter()))
        self._depth()
        if len(self._working) < self._most:
            task = asyncio.create_task(self._work())
            self._working.add(task)
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
            begun, weight = time.perf_counter(), sum(waiting.weight for waiting in batch)
            beside = len(self._working)
            self._computing += weight
            outcomes = await self._outcomes(batch)
            self._computing -= weight
            worked = time.perf_counter() - begun
            failed = any(isinstance(outcome, Exception) for outcome in outcomes)
            # Others came or went meanwhile.
            self._learn(weight, worked / max(beside, len(self._working)), failed=failed)
            self._metrics.batch(self.name, len(batch), worked)
            for waiting, outcome in zip(batch, outcomes, strict=True):
                # Its client left meanwhile, or its time was up.
                if waiting.future.done():
                    continue
                if isinstance(outcome, Exception):
                    waiting.future.set_exception(outcome)
                else:
                    waiting.future.set_result((outcome, begun - waiting.since))
        # Here and not once the task is done: a request that comes in between would find nobody.
        self._working.discard(asyncio.current_task())
        if not self._working:
            self.idle.set()

    def _learn(self, weight: int, worked: float, *, failed: bool) -> None:
        """Bring the pace up to date with a batch of so many tokens and seconds."""
        # One that failed, or whose clients left, may have ended before it was computed.
        if failed and worked < weight * self._pace:
            return
        seconds = 0.8 * self._pace * self._mean_weight + 0.2 * worked
        self._mean_weight = 0.8 * self._mean_weight + 0.2 * weight
        self._pace = min(seconds / self._mean_weight, SLOWEST)

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
        room, share = self._limits.batch_tokens, -(-len(self._waiting) // self._most)
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
        self._metrics.seconds.labels(self.name).set(self._tokens() * self._pace)
        return depth

    def _tokens(self) -> int:
        """Tokens that wait or are being computed."""
        return self._computing + sum(w.weight for w in self._waiting if not w.future.done())


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
