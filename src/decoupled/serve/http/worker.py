"""Requests on an engine, in a thread: short memory halves the batch, one bad request stays alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from decoupled.runtime.cancellation import Cancelled
from decoupled.search.batch import Outcome
from decoupled.search.engine import Engine
from decoupled.search.request import Request
from decoupled.serve.http.batching import IsCancelled
from decoupled.serve.http.metrics import Metrics

_log = logging.getLogger(__name__)

LEAST_BUDGET = 128
"""Padded tokens below which a smaller batch helps no more."""

Job = Sequence[Request]
"""Requests that one client sent together."""


class Worker:
    """Runs jobs on an engine that is opened on first use."""

    def __init__(self, engine: Callable[[], Engine], metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics

    def __call__(
        self, jobs: Sequence[Job], cancelled: IsCancelled
    ) -> list[list[Outcome] | Exception]:
        """The outcomes of each job, in order; `Cancelled` once nobody waits for any of them."""
        engine = self._engine()
        flat = [request for job in jobs for request in job]
        outcomes = iter(self._run(engine, flat, None, cancelled))
        return [[next(outcomes) for _ in job] for job in jobs]

    def _run(
        self,
        engine: Engine,
        requests: Sequence[Request],
        budget: int | None,
        cancelled: IsCancelled,
    ) -> list[Outcome]:
        try:
            return engine.run(requests, budget=budget, cancelled=cancelled)
        except Cancelled:
            raise
        except Exception as error:
            short = is_memory(error)
            if len(requests) > 1:
                if short:
                    self._metrics.halved()
                half = len(requests) // 2
                return [
                    *self._run(engine, requests[:half], budget, cancelled),
                    *self._run(engine, requests[half:], budget, cancelled),
                ]
            smaller = (budget or engine.runtime.token_budget) // 2
            if short and smaller >= LEAST_BUDGET:
                self._metrics.halved()
                return self._run(engine, requests, smaller, cancelled)
            if short:
                return [MemoryError()]
            _log.exception("a request failed")
            return [error]


def is_memory(error: Exception) -> bool:
    """Is memory short? torch says so with errors of its own."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and ("out of memory" in text or "can't allocate memory" in text)
    )
