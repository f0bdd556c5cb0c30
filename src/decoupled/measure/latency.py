"""Wall time of alternatives, measured in turns so that what else the machine does hits all of them alike."""

import time
from collections.abc import Callable, Mapping, Sequence
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


def interleaved(
    alternatives: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 10,
    warmup: int = 2,
    wait: Callable[[], None] | None = None,
) -> dict[str, Latency]:
    """Run every alternative once a round, in turning order, after some rounds that do not count.

    `wait` is called before the clock is read, for devices that work on after a call returns.
    """
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    names = list(alternatives)
    for number in range(warmup + rounds):
        # The order turns from round to round, so that none always follows the same one.
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            started = time.perf_counter()
            alternatives[name]()
            if wait is not None:
                wait()
            if number >= warmup:
                times[name].append((time.perf_counter() - started) * 1e3)
    return {name: summarise(spent) for name, spent in times.items()}
