"""Figures for Prometheus, in a registry of their own."""

import os
from collections.abc import Callable
from functools import partial
from operator import attrgetter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from decoupled.search.engine import Engine
from decoupled.search.results import Timing

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Names the folder through which the processes of a server count together."""
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


class Metrics:
    """The counters, gauges and histograms of a server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter = partial(Counter, namespace="decoupled", registry=registry)
        # Gauges of all living processes are added up; those of dead ones no longer count.
        self._gauge = partial(
            Gauge, namespace="decoupled", registry=registry, multiprocess_mode="livesum"
        )
        self._watched: list[tuple[Gauge, Callable[[], float]]] = []
        histogram = partial(Histogram, namespace="decoupled", registry=registry, buckets=_SECONDS)
        self._requests = counter("requests", "Requests by route and status.", ("route", "status"))
        self._latency = histogram("request_seconds", "Time from arrival to answer.", ("route",))
        self._stages = histogram("stage_seconds", "Time in each stage of a query.", ("stage",))
        self.depth = self._gauge("queue_depth", "Jobs that wait.", ("queue",))
        self.seconds = self._gauge("queue_seconds", "Work that waits, by the pace.", ("queue",))
        self.shed = counter("shed", "Requests that were told to come back.", ("queue",))
        self.slices = counter("slices", "Slices of long requests.")
        self._sizes = histogram("batch_size", "Jobs computed together.", ("queue",), buckets=_SIZES)
        self._batches = histogram("batch_seconds", "Time to compute a batch.", ("queue",))
        self.retries = counter("memory_retries", "Batches halved for want of memory.")

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered, or whose client left (499)."""
        self._requests.labels(route, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def stages(self, timing: Timing, waited: float) -> None:
        """Count the time of one query, by stages."""
        self._stages.labels("queue").observe(waited)
        for name in ("retrieve", "fetch", "encode", "cross"):
            self._stages.labels(name).observe(getattr(timing, f"{name}_ms") / 1e3)

    def batch(self, queue: str, items: int, seconds: float) -> None:
        """Count a batch that was computed."""
        self._sizes.labels(queue).observe(items)
        self._batches.labels(queue).observe(seconds)
        self._look()

    def watch(self, engine: Callable[[], Engine]) -> None:
        """Report what the engine that serves at the time keeps of texts and of the index."""
        for prefix, cache, names in (("text", "text_cache", _TEXTS), ("state", "memory", _STATES)):
            if getattr(engine(), cache) is None:
                continue
            for name, about in names.items():
                gauge = self._gauge(f"{prefix}_cache_{name}", about)
                figure = attrgetter(f"{cache}.{name}")
                self._watched.append(
                    (gauge, partial(lambda figure: float(figure(engine())), figure))
                )

    def _look(self) -> None:
        """Set what is watched: other processes see only what was set."""
        for gauge, figure in self._watched:
            gauge.set(figure())

    def text(self) -> bytes:
        """The page that Prometheus reads: of all processes of the server together."""
        self._look()
        registry = self.registry
        if SHARED in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
