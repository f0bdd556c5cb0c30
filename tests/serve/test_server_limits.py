"""What one request may cost: limits come first, and nothing keeps the event loop from the other clients."""

from __future__ import annotations

import json
import time

import pytest

from decoupled.serve.documents import as_asked
from decoupled.serve.http.app import create_app
from served import call_held, tiny_engine, tiny_index, tiny_split

HELD = 0.1
"""Seconds for which a request may keep the event loop."""


@pytest.fixture(scope="module")
def app(model, tmp_path_factory):
    split = tiny_split(model)
    path = tiny_index(tmp_path_factory.mktemp("limits") / "i", split)
    app = create_app(tiny_engine(path, split))
    call_held(app, "/rerank", b"{}")  # FastAPI prepares itself at the first request
    return app


def refused(app, route, body, status, words, method="POST"):
    """The request is refused with these words, at once."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    begun = time.process_time()
    got, said, held = call_held(app, route, content, method)
    assert got == status and words in str(said), said
    assert held < HELD and time.process_time() - begun < 3.0


def test_ids_are_bounded_and_texts_are_told_from_them_in_linear_time(app):
    body = {"query": "x", "texts": [{"id": "#" * 400_000}]}
    refused(app, "/rerank", body, 413, "the length of an id is 400,000; this server's limit")
    put = {"passages": [{"id": "x" * 5000, "text": "x"}]}
    refused(app, "/v1/passages", put, 422, "limit id_characters is 4,096", "PUT")
    refused(app, "/v1/passages/" + "x" * 5000, b"", 422, "limit id_characters", "DELETE")
    hashes = {n: "#" * 400_000 for n in range(5)} | {5: "0#", 6: "0", 7: "1#x", 8: "2"}
    begun = time.process_time()
    asked, places = as_asked(hashes, {9: "a text", 10: "another"})
    assert time.process_time() - begun < 1.0
    ids = [passage.id for passage in asked["texts"]]
    assert [places[i] for i in ids] == [[9], [10]] and not set(ids) & set(hashes.values())


def test_pairs_are_counted_before_they_are_grouped(app):
    body = {"text_1": [f"q{n}" for n in range(20_000)], "text_2": [f"d{n}" for n in range(20_000)]}
    refused(app, "/score", body, 422, "limit documents is 1,000")
    some = {side: texts[:1000] for side, texts in body.items()}
    status, reply, held = call_held(app, "/score", json.dumps(some).encode())
    assert status == 200 and len(reply["data"]) == 1000 and held < HELD


def test_a_long_document_is_refused_before_it_is_cut(app, monkeypatch):
    monkeypatch.setattr(app.state.service, "cut", lambda *_, **__: pytest.fail("cut first"))
    for route in ("/v2/rerank", "/v1/rerank"):
        body = {"query": "x", "documents": ["word " * 100_000], "max_tokens_per_doc": 10}
        refused(app, route, body, 422, "the length of a text is 500,000")


def test_filters_are_refused_by_their_size(app):
    body = {"query": "river", "where": {f"k{n}": 1 for n in range(40_000)}}
    refused(app, "/v1/search", body, 422, "40,000 fields; give at most 64")


def test_an_empty_query_is_no_query(app):
    refused(app, "/v1/search", {"query": " \n"}, 422, "the query is empty")
    refused(app, "/v1/ask", {"question": "\t"}, 422, "the query is empty")
