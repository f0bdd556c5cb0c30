"""Where the milliseconds of one query go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from decoupled.search.results import Timing


class Clock:
    """Adds up the stages of one query. What several queries do together counts for each of them."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._spent: dict[str, float] = {}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Count the block towards a field of `Timing`."""
        begun = time.perf_counter()
        yield
        self.count(stage, begun)

    def count(self, stage: str, begun: float) -> None:
        """Count the time since `begun` towards a field of `Timing`."""
        self._spent[stage] = self._spent.get(stage, 0.0) + (time.perf_counter() - begun) * 1e3

    def timing(self) -> Timing:
        """The sums so far, and the whole."""
        return Timing(**self._spent, total_ms=(time.perf_counter() - self._started) * 1e3)
