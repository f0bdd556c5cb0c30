"""Spans of requests and stages, through the SDK's own exporter in memory."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")

from fastapi.testclient import TestClient  # noqa: E402
from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: E402
    InMemorySpanExporter,
)

from decoupled.serve.http.app import create_app  # noqa: E402
from served import tiny_engine, tiny_index, tiny_split  # noqa: E402

EXPORTER = InMemorySpanExporter()
STAGES = {"decoupled.retrieve", "decoupled.encode", "decoupled.fetch", "decoupled.cross"}


@pytest.fixture(scope="module")
def engine(model, tmp_path_factory):
    split = tiny_split(model)
    return tiny_engine(tiny_index(tmp_path_factory.mktemp("tracing") / "i", split), split)


@pytest.fixture
def spans():
    """What is exported while a test runs."""
    if not isinstance(trace.get_tracer_provider(), sdk.TracerProvider):
        trace.set_tracer_provider(sdk.TracerProvider())
        trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(EXPORTER))
    EXPORTER.clear()
    return EXPORTER.get_finished_spans


def test_the_stages_of_a_search_are_spans_below_that_of_the_caller(engine, spans):
    with trace.get_tracer("mine").start_as_current_span("mine") as mine:
        engine.search("the moon", 2)
    whole = {span.name: span for span in spans()}
    assert {*STAGES, "decoupled.run", "mine"} == whole.keys()
    assert whole["decoupled.run"].parent.span_id == mine.get_span_context().span_id
    for name in STAGES:
        assert whole[name].parent.span_id == whole["decoupled.run"].context.span_id
        assert whole[name].end_time >= whole[name].start_time


def test_stages_of_a_batch_belong_to_the_requests_of_the_server(engine, spans):
    address = "http://127.0.0.1"
    with (
        TestClient(create_app(engine), base_url=address) as client,
        ThreadPoolExecutor(3) as threads,
    ):

        def search(number):
            headers = {"x-request-id": f"r{number}"}
            if not number:
                headers["traceparent"] = f"00-{'a' * 32}-{'b' * 16}-01"
            asked = {"query": f"the moon {number}", "k": 2}
            return client.post("/v1/search", json=asked, headers=headers).status_code

        assert set(threads.map(search, range(3))) == {200}
    requests = {s.attributes["request_id"]: s for s in spans() if s.name == "decoupled.request"}
    assert requests.keys() == {"r0", "r1", "r2"}
    assert requests["r0"].context.trace_id == int("a" * 32, 16)
    for request in requests.values():
        # FastAPI may have spans of its own between the two.
        own = {s.name for s in spans() if s.context.trace_id == request.context.trace_id}
        assert own >= STAGES


def test_nothing_is_recorded_without_the_package(tmp_path):
    code = (
        "import sys; sys.modules['opentelemetry'] = None; sys.modules['opentelemetry.trace'] = None\n"
        "from decoupled.search import tracing\n"
        "with tracing.span('x', request_id='1'): print(repr(tracing.here()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "''\n"
