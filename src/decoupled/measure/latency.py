"""Wall times, summarised."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Milliseconds of one alternative over its rounds."""

    median: float
    p95: float
    least: float
    rounds: int

    def to_json(self) -> dict[str, float]:
        """The milliseconds as a JSON object, rounded to four digits."""
        return {name: round(value, 4) for name, value in vars(self).items()}


def summarise(milliseconds: Sequence[float]) -> Latency:
    """Median, 95th percentile and least of some times."""
    times = np.asarray(milliseconds, np.float64)
    return Latency(
        median=float(np.median(times)),
        p95=float(np.percentile(times, 95)),
        least=float(times.min()),
        rounds=len(times),
    )


def second_run(call: Callable[[], T]) -> tuple[T, float]:
    """What the second of two calls returns and its milliseconds, since the first one may compile."""
    call()
    begun = time.perf_counter()
    result = call()
    return result, 1e3 * (time.perf_counter() - begun)
