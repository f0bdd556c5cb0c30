"""Requests that no client would send: an answer with a message, never a fault of the server."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

from decoupled.serve.http.app import create_app
from decoupled.serve.http.limits import Limits
from served import listening, tiny_engine, tiny_index, tiny_split


@pytest.fixture(scope="module")
def app(model, tmp_path_factory):
    split = tiny_split(model)
    path = tiny_index(tmp_path_factory.mktemp("fuzz") / "i", split)
    return create_app(tiny_engine(path, split), limits=Limits(documents=50))


@pytest.fixture(scope="module")
def operations(app):
    with listening(app) as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        yield {found.ok().label: found.ok() for found in schema.get_all_operations()}


OPERATIONS = [
    "POST /v1/search",
    "POST /v1/ask",
    "PUT /v1/passages",
    "DELETE /v1/passages/{ident}",
    "GET /v1/passages/{ident}",
    "GET /v1/source/{ident}",
    "PUT /v1/documents/{name}",
    "GET /v1/info",
    "GET /health",
    "GET /ready",
    "GET /metrics",
    "POST /v2/rerank",
    "POST /v1/rerank",
    "POST /rerank",
    "POST /score",
    "POST /v1/score",
    "POST /v1/embeddings",
]
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]


def fuzz(operation, count):
    """Bodies that fit the schema, and as many that do not; how often each status came."""
    statuses: Counter[int] = Counter()

    def answers(case):
        statuses[case.call_and_validate(checks=CHECKS).status_code] += 1

    for mode in MODES:
        strategy = operation.as_strategy(generation_mode=mode)
        calm = settings(
            max_examples=count,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        try:
            calm(given(case=strategy)(answers))()
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE  # a route without input has nothing to get wrong
    return statuses


def test_every_route_is_fuzzed(operations):
    assert set(operations) == set(OPERATIONS)


@pytest.mark.parametrize("label", OPERATIONS)
def test_the_schema_holds(operations, label):
    assert sum(fuzz(operations[label], 2).values())


@pytest.mark.slow
@pytest.mark.parametrize("label", OPERATIONS)
def test_the_schema_holds_for_many(operations, label):
    assert sum(fuzz(operations[label], 300).values())


ROUTES = [
    "/v1/search",
    "/v1/ask",
    "/v2/rerank",
    "/v1/rerank",
    "/rerank",
    "/score",
    "/v1/passages",
    "/v1/embeddings",
]

BODIES = {
    "nothing": b"",
    "binary": bytes(random.Random(0).randbytes(2000)),
    "not utf-8": b'{"query": "\xff\xfe"}',
    "utf-16": '{"query": "x"}'.encode("utf-16"),
    "cut off": b'{"query": "x", "documents": ["a',
    "deep list": b"[" * 100_000,
    "deep object": b'{"query":' * 50_000 + b"1" + b"}" * 50_000,
    "deep document": b'{"query":"x","documents":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "huge integer": b'{"query":"x","question":"x","k":' + b"9" * 5000 + b"}",
    "large integer": b'{"query":"x","question":"x","k":99999999999999999999,"documents":["a"],"top_n":1e400}',
    "not a number": b'{"query":"x","question":"x","threshold":NaN,"k":NaN,"texts":[NaN]}',
    "infinity": b'{"query":"x","documents":["a"],"top_n":Infinity,"k":-Infinity}',
    "a list": b"[1,2,3]",
    "a string": b'"query"',
    "null": b"null",
    "null fields": b'{"query":null,"question":null,"documents":null,"texts":null,"passages":null}',
    "wrong types": b'{"query":{"a":[]},"question":[],"documents":7,"texts":{"x":1},"passages":"p"}',
    "wrong items": b'{"query":"x","question":"x","documents":[1,null,[],{}],"texts":[[],2],"passages":[1]}',
    "nul": b'{"query":"a\\u0000b","question":"\\u0000","documents":["\\u0000"],"texts":["\\u0000"],"k":1}',
    "one key many times": b"{" + b'"query":"x",' * 20_000 + b'"query":1}',
    "empty id": b'{"query":"x","documents":[{"id":""}],"texts":[{"id":""}],"passages":[{"id":""}]}',
    "bad filter": b'{"query":"x","question":"x","where":{"a":{"gte":{"b":[]}},"\\u0000":1}}',
    "bad meta": b'{"passages":[{"text":"x","meta":{"a\\u0000":1,"n":1e999}}]}',
}


FIT = {"nul", "utf-16", "wrong items", "empty id"}
"""Those that some route can make sense of, since other routes' fields are unknown to it."""


@pytest.mark.parametrize("name", BODIES)
def test_odd_bodies(app, name):
    client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    for kind in ("application/json", "text/plain"):
        for route in ROUTES:
            method = "PUT" if route == "/v1/passages" else "POST"
            reply = client.request(
                method, route, content=BODIES[name], headers={"content-type": kind}
            )
            fits = reply.status_code == 200 and name in FIT
            assert 400 <= reply.status_code < 500 or fits, (
                f"{route} answered {reply.status_code} to {name}: {reply.text[:300]}"
            )
            if reply.status_code >= 400:
                words = json.loads(reply.content)
                assert words.get("error") or words.get("message")
                assert len(reply.content) < 4000


def test_odd_headers_and_paths(app):
    client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    for headers in (
        {"content-length": "-5"},
        {"content-length": "x"},
        {"authorization": b"Bearer \xff"},
        {"content-type": "application/json; charset=utf-7"},
        {"x-request-id": "a" * 10_000},
        {"host": "[::1"},
    ):
        assert (
            client.request("POST", "/v1/search", content=b"{}", headers=headers).status_code < 500
        )
    for path in ("/v1/passages/%00", "/v1/passages/%ff%fe", "/v1/passages/../../etc/passwd", "//"):
        assert client.delete(path).status_code in (404, 405, 422)
    for path in ("/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static/"):
        assert client.get(path).status_code == 404
    assert client.request("BREW", "/v1/search").status_code == 405
