"""Figures for Prometheus, in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from decoupled.search.engine import Engine
from decoupled.search.results import Timing

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TEXTS = {
    "hits": "Texts whose states were known.",
    "misses": "Texts that were encoded.",
    "bytes": "Bytes that known states take.",
}
_STATES = {
    "hits": "Records whose states were in memory.",
    "misses": "Records whose states were read.",
    "evicted": "Records that made room for others.",
    "records": "Records in memory.",
    "bytes": "Bytes that they take.",
    "budget": "Bytes that they may take.",
}


def _figure(kept: Callable[[], Any], name: str) -> float:
    return float(getattr(kept(), name))


class Metrics:
    """What the server counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "decoupled_requests",
            "Requests by route and status.",
            ("route", "status"),
            registry=self.registry,
        )
        self._latency = Histogram(
            "decoupled_request_seconds",
            "Time from arrival to answer.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._stages = Histogram(
            "decoupled_stage_seconds",
            "Time in each stage of a query.",
            ("stage",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._depth = Gauge(
            "decoupled_queue_depth", "Jobs that wait.", ("queue",), registry=self.registry
        )
        self._sizes = Histogram(
            "decoupled_batch_size",
            "Jobs computed together.",
            ("queue",),
            buckets=_SIZES,
            registry=self.registry,
        )
        self._batches = Histogram(
            "decoupled_batch_seconds",
            "Time to compute a batch.",
            ("queue",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._retries = Counter(
            "decoupled_memory_retries",
            "Batches halved for want of memory.",
            registry=self.registry,
        )

    def request(self, route: str, status: int, seconds: float) -> None:
        """One request was answered, or its client left (499)."""
        self._requests.labels(route, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def stages(self, timing: Timing, waited: float) -> None:
        """Where the time of one query went."""
        self._stages.labels("queue").observe(waited)
        for name in ("retrieve", "fetch", "encode", "cross"):
            self._stages.labels(name).observe(getattr(timing, f"{name}_ms") / 1e3)

    def depth(self, queue: str, jobs: int) -> None:
        """How many jobs wait."""
        self._depth.labels(queue).set(jobs)

    def batch(self, queue: str, jobs: int, seconds: float) -> None:
        """A batch was computed."""
        self._sizes.labels(queue).observe(jobs)
        self._batches.labels(queue).observe(seconds)

    def halved(self) -> None:
        """Memory was short."""
        self._retries.inc()

    def watch(self, engine: Callable[[], Engine]) -> None:
        """Report what the engine that serves at the time keeps of texts and of the index."""
        if engine().recent is not None:
            self._follow("decoupled_text_cache", _TEXTS, lambda: engine().recent)
        if engine().memory is not None:
            self._follow("decoupled_state_cache", _STATES, lambda: engine().memory)

    def _follow(self, cache: str, figures: dict[str, str], kept: Callable[[], Any]) -> None:
        for name, about in figures.items():
            gauge = Gauge(f"{cache}_{name}", about, registry=self.registry)
            gauge.set_function(partial(_figure, kept, name))

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self.registry)
