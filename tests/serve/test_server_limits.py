"""What one request may cost: limits come first, and nothing keeps the event loop from the other clients."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import threading
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from decoupled.search.request import listed
from decoupled.serve.http import server
from decoupled.serve.http.app import create_app
from decoupled.serve.http.bodies import Bodies, Outline, parse
from decoupled.serve.http.limits import Limits
from decoupled.serve.http.responses import Json, LargeJson, RequestProblem
from decoupled.serve.http.server import Server, bind, listen
from served import call_held, tiny_engine, tiny_index, tiny_split

HELD = 0.1
"""Seconds for which a request may keep the event loop."""
LARGE = b" " * (1 << 20)
"""Makes a body one that is parsed in steps."""


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
    listed_documents = listed(hashes, {9: "a text", 10: "another"})
    assert time.process_time() - begun < 1.0
    ids = [passage.id for passage in listed_documents.texts]
    assert [listed_documents.positions[i] for i in ids] == [[9], [10]] and not set(ids) & set(
        hashes.values()
    )


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


def test_long_documents_that_are_cut_leave_the_other_threads_free(app, monkeypatch):
    names = []
    tokenizer = app.state.service.engine.runtime.tokenizer
    plain = tokenizer.cut

    def cut(*given, **options):
        names.append(threading.current_thread().name)
        return plain(*given, **options)

    monkeypatch.setattr(tokenizer, "cut", cut)
    body = {"query": "x", "documents": ["word " * 900] * 3, "max_tokens_per_doc": 5}
    assert call_held(app, "/v2/rerank", json.dumps(body).encode())[0] == 200
    assert [name.partition("_")[0] for name in names] == ["json"]


def test_filters_are_refused_by_their_size(app):
    body = {"query": "river", "where": {f"k{n}": 1 for n in range(40_000)}}
    refused(app, "/v1/search", body, 422, "40,000 fields; give at most 64")


def test_an_empty_query_is_no_query(app):
    refused(app, "/v1/search", {"query": " \n"}, 422, "the query is empty")
    refused(app, "/v1/ask", {"question": "\t"}, 422, "the query is empty")


MANY = 1_000_000
BOMBS = {
    "documents of numbers": ("/v1/rerank", b'{"query":"x","documents":[%s1]}' % (b"1," * MANY)),
    "numbers, Cohere": ("/v2/rerank", b'{"query":"x","documents":[%s1]}' % (b"1," * MANY)),
    "numbers, TEI": ("/rerank", b'{"query":"x","texts":[%s1]}' % (b"1," * MANY)),
    "numbers, vLLM": ("/score", b'{"text_1":"x","text_2":[%s1]}' % (b"1," * MANY)),
    "empty strings": ("/v2/rerank", b'{"query":"x","documents":[%s""]}' % (b'"",' * MANY)),
    "unknown fields": ("/v1/search", b'{"query":"x"%s}' % (b',"k":1' * MANY)),
    "nulls to store": ("/v1/passages", b'{"passages":[%snull]}' % (b"null," * MANY)),
    "filter of lists": ("/v1/search", b'{"query":"x","where":{"k":[%s0]}}' % (b"[]," * MANY)),
    "deep": ("/v1/ask", b'{"question":"x","where":%s' % (b'{"a":' * MANY)),
    "list of lists": ("/rerank", b'{"query":"x","texts":%s' % (b"[" * MANY)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_counted_while_they_arrive(app, name):
    route, body = BOMBS[name]
    limit = "limit depth is 64" if name in ("deep", "list of lists") else "limit values is 100,000"
    method = "PUT" if route == "/v1/passages" else "POST"
    refused(app, route, body, 413 if route == "/rerank" else 422, limit, method)


ERRORS = {
    "documents of numbers": ("/v1/rerank", {"query": "x", "documents": [1] * 1000}),
    "numbers, Cohere": ("/v2/rerank", {"query": "x", "documents": [1] * 1000}),
    "numbers, TEI": ("/rerank", {"query": "x", "texts": [1] * 1000}),
    "numbers, vLLM": ("/score", {"text_1": "x", "text_2": [1] * 1000}),
    "queries": ("/score", {"text_1": [None] * 1000, "text_2": ["a"] * 1000}),
    "unknown fields": ("/v1/search", {"query": "x"} | {f"k{n}": 1 for n in range(20_000)}),
    "unknown of a passage": ("/v1/passages", {"passages": [{f"k{n}": 1 for n in range(20_000)}]}),
    "of all passages": ("/v1/passages", {"passages": [dict.fromkeys("abcdefgh", 1)] * 1000}),
    "fields to rank by": (
        "/v1/rerank",
        {"query": "x", "documents": ["a"], "rank_fields": [1] * 9999},
    ),
    "ids": ("/v1/ask", {"question": "x", "ids": [1] * 1000}),
}


@pytest.mark.parametrize("name", ERRORS)
def test_validation_stops_at_the_first_few_errors(app, name):
    route, body = ERRORS[name]
    for padding in ("", "x" * 100_000):  # parsed on the loop, and in the thread
        method = "PUT" if route == "/v1/passages" else "POST"
        refused(app, route, {**body, "model": padding}, 422, "", method)


def values(value):
    """Items of lists and fields of objects, of an empty one too."""
    if not isinstance(value, dict | list):
        return 0
    return max(1, len(value)) + sum(
        map(values, value.values() if isinstance(value, dict) else value)
    )


def test_a_body_is_outlined_whatever_its_pieces():
    draw = random.Random(0)
    for turn in range(300):
        texts = ["".join(draw.choices('a,[]{}"\\\n', k=draw.randint(0, 12))) for _ in range(5)]
        value = {"k": texts, texts[0]: [[texts[1], {"x": texts[2]}], 1, None], "e": [{}, []]}
        document = json.dumps(value, ensure_ascii=bool(turn % 2)).encode()
        whole, cut = Outline(), Outline()
        whole.feed(document)
        while document:
            at = draw.randint(1, 4)
            cut.feed(document[:at])
            document = document[at:]
        assert (cut.values, cut.depth) == (whole.values, whole.depth)
        assert whole.values == values(value) and whole.depth == 3 + (texts[0] != "e")


def test_a_large_body_is_parsed_as_json_parses_it(app):
    for value in ({"a": ["x", 1, -2.5e3, None, True, {}, [], '😀é"\\\n']}, [], "", 0):
        for text in (json.dumps(value), json.dumps(value, indent=1, ensure_ascii=False)):
            assert parse(text.encode()) == parse(text.encode() + LARGE) == value
    assert parse(b'\xef\xbb\xbf["\\ud800"]') == ["\ud800"]
    for content, why in ((b'{"a":', "not JSON: Expecting value"), (b'["\xff"]', "JSON in UTF-8")):
        for rest in (b"", LARGE):
            with pytest.raises(RequestProblem, match=why):
                parse(content + rest)
    for rest in (b"", LARGE):
        with pytest.raises(RequestProblem, match="number is too long"):
            parse(b"[" + b"1" * 9999 + b"]" + rest)
    wide = "中" * (1 << 20)  # its bytes are cut within a character
    assert parse(json.dumps([wide], ensure_ascii=False).encode()) == [wide]


def test_many_large_bodies_take_turns():
    clients, parts, seen = 20, 30, [0]

    async def send(bodies):
        rest = iter([{"type": "http.request", "body": b" " * 65536, "more_body": True}] * parts)

        async def receive():
            seen[-1] += 1
            return next(rest, {"type": "http.request", "body": b" "})

        async with bodies.read(receive, {}) as body:
            assert len(body) == parts * 65536 + 1

    async def serve():
        bodies = Bodies(Limits())
        sending = [asyncio.ensure_future(send(bodies)) for _ in range(clients)]
        while not all(task.done() for task in sending):
            await asyncio.sleep(0)
            seen.append(0)
        await asyncio.gather(*sending)

    asyncio.run(serve())
    # Each has two parts in hand before it waits; of all that follow, the loop handles one at a time.
    assert sum(seen) == clients * (parts + 1) and sorted(seen)[-3] <= 2, seen[:9]


def test_what_is_loaded_is_not_looked_through_for_garbage(app, monkeypatch):
    frozen = []
    monkeypatch.setattr(Server, "run", lambda *_, **__: frozen.append(gc.get_freeze_count()))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.setswitchinterval", lambda _: None)
    try:
        listen(app, bind("127.0.0.1", 0))
    finally:
        gc.unfreeze()
    assert frozen[0] > 10_000


def test_large_and_small_bodies_get_the_same_answers(app):
    texts = [f"the river {n} of the town" for n in range(20)]
    bodies = {
        "/rerank": {"query": "river", "texts": texts, "return_text": True},
        "/v1/rerank": {
            "query": "river",
            "documents": [*texts[:9], {"text": "a", "n": 1}, {"id": "moon"}],
        },
        "/v2/rerank": {"query": "river", "documents": texts},
        "/score": {"text_1": "river", "text_2": texts},
        "/v1/ask": {"question": "river", "texts": texts},
    }
    for route, body in bodies.items():
        replies = []
        for padding in (b"", b" " * 100_000):
            status, reply, _ = call_held(app, route, json.dumps(body).encode() + padding)
            varying = r"'(id|created|timing)': ('[^']*'|\d+|\{[^}]*\}),?"
            replies.append((status, re.sub(varying, "", str(reply))))
        assert replies[0] == replies[1] and replies[0][0] == 200


def test_a_large_answer_is_written_as_a_small_one():
    for value in ({"a": ["é", 1.5, None, {"b": []}]}, {"a": "\ud800 中"}):
        assert LargeJson(value).body.replace(b" ", b"") == Json(value).body.replace(b" ", b"")


def test_the_largest_good_body_holds_nobody(app):
    documents = [f"{n} " + "a river, a town; 中 \n" * 640 for n in range(1000)]
    body = json.dumps({"query": "x", "documents": documents, "top_n": 1}, ensure_ascii=False)
    engine, asked = app.state.service.engine, []

    def run(requests, **_):
        asked.extend(requests)
        return [ValueError("enough")] * len(requests)

    engine.run, real = run, engine.run
    refused(app, "/v1/rerank", body.encode(), 422, "seconds of work here")
    app.state.service._long._pace = 1e-6
    try:
        status, _, held = call_held(app, "/v1/rerank", body.encode())
    finally:
        engine.run = real
    assert status == 500 and len(asked[0].texts) == 1000 and len(body.encode()) > 14 << 20
    assert held < HELD


def test_bodies_in_flight_are_bounded_together(app, model):
    limits = Limits(bytes_in_flight=1 << 20)
    small = create_app(app.state.service.engine, limits=limits)
    texts = json.dumps({"query": "x", "documents": ["word " * 300] * 900}).encode()
    for route, status in (("/v2/rerank", 503), ("/rerank", 429)):
        refused(small, route, texts, status, "limit bytes_in_flight")
    middleware = small.middleware_stack
    while not hasattr(middleware, "_bodies"):
        middleware = middleware.app if hasattr(middleware, "app") else middleware._app
    assert middleware._bodies.held == 0
    assert call_held(small, "/v1/search", b'{"query": "river"}')[0] == 200


def test_json_is_read_only_where_it_is_called_json(app):
    """A page of another site may send any body without asking, but not with this content type."""
    client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    for kind in (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {} if kind is None else {"content-type": kind}
        for body in (b'{"query": "river"}', b'{"query": "river"}' + b" " * 100_000):
            reply = client.post("/v1/search", content=body, headers=headers)
            assert reply.status_code == 422 and "content-type" in reply.json()["error"], kind
        put = b'{"passages": [{"id": "x", "text": "x"}]}'
        assert client.put("/v1/passages", content=put, headers=headers).status_code == 422
    headers = {"content-type": "application/json; charset=utf-8"}
    assert client.post("/v1/search", content=b'{"query":"river"}', headers=headers).is_success


def test_a_query_has_a_limit_of_its_own(app):
    long = "川" * 8193
    for route, body in (
        ("/v1/search", {"query": long}),
        ("/v1/ask", {"question": long, "texts": ["a"]}),
        ("/v2/rerank", {"query": long, "documents": ["a"]}),
    ):
        refused(app, route, body, 422, "limit query_characters is 8,192")
    assert call_held(app, "/v1/search", json.dumps({"query": long[1:]}).encode())[0] == 200


def test_the_pages_name_the_limits_that_there_are():
    """Whoever sizes a proxy reads them there."""
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    units = {"": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20}
    told = {}
    for names, values in re.findall(r"^\|[^|]*\|( `[^|]*)\| (\d[^|]*)\|", page, re.MULTILINE):
        sizes = re.findall(r"(\d[\d,]*)(?: (KiB|MiB|s)\b)?", values)
        numbers = [int(n.replace(",", "")) * units[unit] for n, unit in sizes]
        told |= dict(zip(re.findall(r"`(\w+)`", names), numbers, strict=False))
    assert len(told) == 16 and told == {name: getattr(Limits(), name) for name in told}


@pytest.mark.parametrize(
    ("options", "hosts", "writes"),
    [
        ({}, (), True),
        ({"hosts": ["docs.example:80"]}, ("docs.example",), True),
        ({"host": "0.0.0.0"}, ("*",), False),
        ({"host": "0.0.0.0", "hosts": ["a.example"]}, ("a.example",), False),
        ({"host": "0.0.0.0", "api_key_file": "keys"}, ("*",), True),
    ],
)
def test_who_may_ask_and_change_follows_from_the_address(
    monkeypatch, tmp_path, options, hosts, writes
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").write_text("a-key-of-some-length\n")
    seen = []
    monkeypatch.setattr(server.Served, "run", lambda self, *_: seen.append(self.access))
    server.serve_index(tmp_path, port=0, **options)
    assert (seen[0].hosts, seen[0].writes) == (hosts, writes)


def test_the_limits_are_those_that_the_page_names():
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`[^|]*\| ([\d,]+) \|", page, re.MULTILINE)
    assert len(rows) >= 7
    assert {name: getattr(Limits(), name) for name, _ in rows} == {
        name: int(number.replace(",", "")) for name, number in rows
    }
