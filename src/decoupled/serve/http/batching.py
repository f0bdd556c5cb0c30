"""One small batcher: requests that wait while others are computed are computed together next.

Nobody waits for company. A batch is what has gathered, up to a budget of tokens; each request has one future.
One whose client has left is not computed, and a batch that nobody waits for any more is told to stop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from decoupled.serve.http import problems
from decoupled.serve.http.metrics import Metrics

J = TypeVar("J")
R = TypeVar("R")

IsCancelled = Callable[[], bool]
"""Has everybody left who waited for what is being computed? Any thread may ask."""


@dataclass(frozen=True, eq=False)
class Done(Generic[R]):
    """A result, how long it waited and how long its batch took, in seconds."""

    value: R
    waited: float
    worked: float


@dataclass(eq=False)
class _Waiting(Generic[J, R]):
    job: J
    weight: int
    future: asyncio.Future[Done[R]]
    since: float


class Batcher(Generic[J, R]):
    """Runs jobs in one thread of its own, in order, as many at a time as the budget allows."""

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[J], IsCancelled], Sequence[R | Exception]],
        *,
        budget: int,
        queue: int,
        metrics: Metrics,
    ) -> None:
        self.name, self._run = name, run
        self._budget, self._queue, self._metrics = budget, queue, metrics
        self._waiting: deque[_Waiting[J, R]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._working: asyncio.Task[None] | None = None
        self._pace = 0.05
        self._closed = False

    async def submit(self, job: J, *, weight: int, seconds: float) -> Done[R]:
        """The job's result, or its error; a `Problem` when the queue is full or time is up."""
        live = self._live()
        if live >= self._queue or self._closed:
            raise problems.overloaded(live * self._pace)
        waiting: _Waiting[J, R] = _Waiting(
            job, weight, asyncio.get_running_loop().create_future(), time.perf_counter()
        )
        self._waiting.append(waiting)
        self._live()
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        try:
            return await asyncio.wait_for(waiting.future, seconds)
        except (TimeoutError, asyncio.TimeoutError):
            raise problems.Problem(
                status=504,
                message=f"no result within this server's limit seconds = {seconds:g}; send less, or "
                "try again when there is less to do",
                kind="timeout",
            ) from None
        finally:
            self._live()

    async def close(self) -> None:
        """Take nothing new, finish what was taken."""
        self._closed = True
        if self._working is not None:
            await self._working
        self._thread.shutdown()

    async def _work(self) -> None:
        """Compute batches until nothing waits."""
        try:
            while batch := self._take():
                begun = time.perf_counter()
                outcomes = await self._outcomes(batch)
                worked = time.perf_counter() - begun
                self._pace = 0.8 * self._pace + 0.2 * worked / len(batch)
                self._metrics.batch(self.name, len(batch), worked)
                for waiting, outcome in zip(batch, outcomes, strict=True):
                    if waiting.future.done():
                        continue
                    if isinstance(outcome, Exception):
                        waiting.future.set_exception(outcome)
                    else:
                        done = Done(outcome, begun - waiting.since, worked)
                        waiting.future.set_result(done)
        finally:
            self._working = None

    async def _outcomes(self, batch: list[_Waiting[J, R]]) -> Sequence[R | Exception]:
        loop = asyncio.get_running_loop()
        jobs = [w.job for w in batch]

        def cancelled() -> bool:
            return all(w.future.done() for w in batch)

        try:
            return await loop.run_in_executor(self._thread, self._run, jobs, cancelled)
        except Exception as error:
            return [error] * len(jobs)

    def _take(self) -> list[_Waiting[J, R]]:
        """The next batch: at least one job, then those that fit the budget, in order of arrival."""
        batch: list[_Waiting[J, R]] = []
        room = self._budget
        while self._waiting:
            first = self._waiting[0]
            if first.future.done():
                self._waiting.popleft()
                continue
            if batch and first.weight > room:
                break
            room -= first.weight
            batch.append(self._waiting.popleft())
        self._live()
        return batch

    def _live(self) -> int:
        """How many wait, without those whose clients have left."""
        live = sum(not w.future.done() for w in self._waiting)
        self._metrics.depth(self.name, live)
        return live
