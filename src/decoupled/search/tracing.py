"""OpenTelemetry: a span of each request and stage, where the extra `otel` is installed; else nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

try:
    from opentelemetry.trace import get_tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    _WRITTEN = TraceContextTextMapPropagator()
except ImportError:
    _WRITTEN = None  # type: ignore[assignment]


@contextmanager
def span(name: str, parent: str = "", **attributes: str) -> Iterator[None]:
    """A span of the block, below `parent` as `here` writes it, or below the span that is open now."""
    if _WRITTEN is None:
        yield
        return
    context = _WRITTEN.extract({"traceparent": parent}) if parent else None
    with get_tracer("decoupled").start_as_current_span(name, context, attributes=attributes):
        yield


def here() -> str:
    """The span that is open now, as W3C's header `traceparent` writes it; empty where none is."""
    header = dict[str, str]()
    if _WRITTEN is not None:
        _WRITTEN.inject(header)
    return header.get("traceparent", "")
