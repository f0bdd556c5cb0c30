"""The own routes: the JSON of the command line, changes that are seen at once, limits that are named."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from decoupled.errors import DecoupledError
from decoupled.index.index import Index
from decoupled.model.model import Model
from decoupled.model.scoring import AnswerPlatt, Scoring
from decoupled.model.tokens import Passage
from decoupled.runtime.open import open_joint
from decoupled.search.engine import Engine
from decoupled.serve.http import service
from decoupled.serve.http.app import create_app
from decoupled.serve.http.limits import Access, Limits, is_local, read_keys
from decoupled.serve.http.page import heading_questions
from decoupled.serve.live import ask_once
from served import TEXTS, tiny_engine, tiny_index, tiny_split

KEY = "a-key-that-nobody-guesses"


@pytest.fixture(scope="module")
def split(model):
    return tiny_split(model)


@pytest.fixture
def path(split, tmp_path):
    return tiny_index(tmp_path / "i", split)


@pytest.fixture
def client(path, split):
    with connect(path, split) as opened:
        yield opened


def connect(path, split, **options):
    app = create_app(tiny_engine(path, split, remember=1 << 20), **options)
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


def without_time(document):
    return {name: value for name, value in document.items() if name != "timing"}


def test_search_and_ask_answer_what_the_engine_answers(client, path, split):
    engine = tiny_engine(path, split)
    found = client.post("/v1/search", json={"query": "who wrote the novel", "k": 2})
    assert found.status_code == 200
    alone = engine.search("who wrote the novel", 2).to_json()
    assert found.json()["hits"] and without_time(found.json()) == without_time(alone)
    asked = client.post("/v1/ask", json={"question": "who wrote the novel"}).json()
    assert without_time(asked) == without_time(engine.ask("who wrote the novel").to_json())
    assert set(asked["timing"]) == {"retrieve_ms", "fetch_ms", "encode_ms", "cross_ms", "total_ms"}
    for name in (
        "x-compute-type",
        "x-compute-time",
        "x-compute-tokens",
        "x-queue-time",
        "x-total-time",
    ):
        assert found.headers[name]
    assert int(found.headers["x-compute-characters"]) == len("who wrote the novel")


def test_hops_follow_links(client):
    near = {"id": "near", "text": "the quay of stone", "meta": {"links": ["far"]}}
    far = {"id": "far", "text": "an island with a tower"}
    assert client.put("/v1/passages", json={"passages": [near, far]}).status_code == 200
    body = {"question": "quay", "k": 50, "first_stage": "lexical", "candidates": 1}
    read = [
        {a["passage_id"] for a in client.post("/v1/ask", json=body | hops).json()["answers"]}
        for hops in ({}, {"hops": 2})
    ]
    assert read == [{"near"}, {"near", "far"}]
    assert client.post("/v1/ask", json=body | {"hops": 9}).status_code == 422


def test_no_texts_are_read_where_none_are_given(client, path, split):
    """An empty list is not the whole index."""
    engine, question = tiny_engine(path, split), "who wrote the novel"
    assert len(engine.ask(question)) and not engine.ask(question, texts=[])
    assert not engine.ask(question, ids=[])
    for name in ("ids", "texts"):
        asked = client.post("/v1/ask", json={"question": question, name: []})
        assert asked.status_code == 200 and asked.json()["answers"] == []


def test_scores_are_blended_and_withheld_as_asked(path, split):
    learnt = Scoring(bm25=2.0, answer=AnswerPlatt(share=1.0, weight=0.0, offset=0.0), no_answer=1.0)
    engine = tiny_engine(path, split)
    engine.index.spec = replace(split.spec, scoring=learnt)
    with TestClient(create_app(engine), base_url="http://127.0.0.1") as client:
        asked = {"query": "the river", "first_stage": "dense", "raw": True}
        once, none = (
            {h["id"]: h["score"] for h in client.post("/v1/search", json=body).json()["hits"]}
            for body in (asked, asked | {"blend": 0})
        )
        assert max(once, key=lambda i: once[i] - none[i]) == "paris"
        assert client.post("/v1/search", json=asked | {"blend": -1}).status_code == 422
        asked = {"question": "the river"}
        silent = client.post("/v1/ask", json=asked).json()
        assert silent["answers"] == [] and silent["rejected"], "the model's own threshold"
        all_guesses = client.post("/v1/ask", json=asked | {"threshold": 0}).json()
        assert all_guesses["answers"] == silent["rejected"] and not all_guesses["rejected"]


def test_options_reach_the_engine(client, path, split):
    engine = tiny_engine(path, split)
    body = {
        "query": "the sea",
        "k": 3,
        "where": {"n": {"gte": 2}},
        "raw": True,
        "first_stage": "dense",
    }
    hits = client.post("/v1/search", json=body).json()["hits"]
    assert {h["id"] for h in hits} == {"moon", "long"}
    assert [h["score"] for h in hits] == pytest.approx(
        [h.score for h in engine.search(**body)], abs=1e-5
    )
    shown = client.post("/v1/search", json={**body, "show_first_stage": True}).json()["hits"]
    ranks = [
        h["first_stage"]["dense"]["rank"] for h in shown
    ]  # of windows, of which `long` has many
    assert min(ranks) >= 1 and len(set(ranks)) == 2
    asked = client.post("/v1/ask", json={"question": "the sea", "ids": ["moon"], "k": 2}).json()
    assert {a["passage_id"] for a in asked["answers"]} == {"moon"}
    asked = client.post("/v1/ask", json={"question": "the sea", "texts": ["a boat at sea"]}).json()
    assert asked["answers"][0]["passage"] == "a boat at sea"
    assert not client.post("/v1/ask", json={"question": "x", "threshold": 1}).json()["answers"]
    assert client.post("/v1/ask", json={"question": "x", "threshold": 50}).status_code == 422


def test_the_joint_model_reads_the_same_passages(client, split, path):
    from decoupled.model.model import Model

    asked = client.post("/v1/ask", json={"question": "who wrote it", "k": 3, "joint": True}).json()
    texts = tiny_engine(path, split).candidates("who wrote it")
    alone = Engine(Model.split(split, at=0)).ask("who wrote it", 3, texts=texts)
    assert asked["joint"]["answers"][0]["text"] == alone[0].text
    assert asked["joint"]["answers"][0]["score"] == pytest.approx(alone[0].score, rel=1e-3)
    assert asked["joint"]["timing"]["cross_ms"] > 0
    found = client.post("/v1/search", json={"query": "the sea", "joint": True}).json()
    assert {h["id"] for h in found["joint"]["hits"]} == {h["id"] for h in found["hits"]}


def test_passages_are_added_found_replaced_and_deleted(client, path):
    new = {"id": "a/b c", "text": "a xylophone in the tower", "title": "Music", "meta": {"n": 9}}
    put = client.put("/v1/passages", json={"passages": [new, {"text": "no id at all"}]})
    assert put.json()["added"] == 2 and put.json()["passages"] == len(TEXTS) + 2
    assert put.json()["ids"][0] == "a/b c" and len(put.json()["ids"][1]) == 16
    again = client.put("/v1/passages", json={"passages": [new, {"text": "no id at all"}]}).json()
    assert (again["added"], again["unchanged"]) == (0, 2) and again["ids"] == put.json()["ids"]
    (hit,) = client.post("/v1/search", json={"query": "xylophone", "k": 1}).json()["hits"]
    assert (hit["id"], hit["title"], hit["meta"]) == ("a/b c", "Music", {"n": 9})
    changed = client.put("/v1/passages", json={"passages": [{**new, "text": "a drum"}]}).json()
    assert changed["replaced"] == 1
    assert client.delete("/v1/passages/a%2Fb%20c%0A").status_code == 404  # another id
    assert client.delete("/v1/passages/a%2Fb%20c").json() == {"deleted": 1, "passages": 5}
    gone = client.delete("/v1/passages/a%2Fb%20c")
    assert gone.status_code == 404 and "'a/b c'" in gone.json()["error"]
    assert len(Index.open(path)) == 5


def test_a_passage_is_shown_with_what_stands_around_it(client, path, split):
    with Index.open(path, model=split, write=True) as index:
        for n, start in enumerate((0, 100, 200, 9000)):
            meta = {"document": "town.html", "start": start, "end": start + 90}
            index.add([Passage(id=f"town.html#{n}", text=f"the town {n}", title="Town", meta=meta)])
    found = client.get("/v1/passages/town.html%231").json()
    assert (found["id"], found["text"], found["title"]) == ("town.html#1", "the town 1", "Town")
    assert [p["id"] for p in found["around"]] == ["town.html#0", "town.html#1", "town.html#2"]
    alone = client.get("/v1/passages/long").json()
    assert alone["text"] == TEXTS["long"] and [p["id"] for p in alone["around"]] == ["long"]
    missing = client.get("/v1/passages/nobody")
    assert missing.status_code == 404 and "'nobody'" in missing.json()["error"]


def test_changes_by_another_process_are_seen(client, path, split):
    assert client.get("/v1/info").json()["passages"] == len(TEXTS)
    with Index.open(path, model=split, write=True) as index:
        index.add([Passage(id="new", text="a xylophone")])
        busy = client.put("/v1/passages", json={"passages": [{"text": "x"}]})
        assert busy.status_code == 409 and "process" in busy.json()["error"]
        assert busy.headers["retry-after"]
    found = client.post("/v1/search", json={"query": "xylophone", "k": 1}).json()
    assert found["hits"][0]["id"] == "new"
    assert client.get("/v1/info").json()["passages"] == len(TEXTS) + 1


def test_an_empty_index_fills(split, tmp_path):
    Index.create(tmp_path / "e", split).close()
    with connect(tmp_path / "e", split) as client:
        assert client.get("/ready").status_code == 200
        assert client.post("/v1/search", json={"query": "river"}).json()["hits"] == []
        assert client.post("/v1/ask", json={"question": "river"}).json()["answers"] == []
        assert client.post("/v1/ask", json={"question": "a", "ids": ["x"]}).status_code == 404
        client.put("/v1/passages", json={"passages": [{"id": "r", "text": "a river"}]})
        assert client.post("/v1/search", json={"query": "river"}).json()["hits"][0]["id"] == "r"
        assert client.post("/rerank", json={"query": "a", "texts": ["b"]}).status_code == 200


def test_a_model_alone_reranks(split):
    with TestClient(create_app(Engine(split)), base_url="http://localhost") as client:
        ranked = client.post("/v2/rerank", json={"query": "a", "documents": ["b", "c"]})
        assert {r["index"] for r in ranked.json()["results"]} == {0, 1}
        for reply in (
            client.post("/v1/search", json={"query": "a"}),
            client.put("/v1/passages", json={"passages": [{"text": "x"}]}),
        ):
            assert reply.status_code == 422 and "no index" in reply.json()["error"]
        assert client.get("/ready").status_code == 200
        assert client.get("/v1/info").json()["kind"] == "model"


def test_an_index_that_is_deleted_and_comes_back(client, path, split, tmp_path):
    path.rename(tmp_path / "aside")
    for reply in (
        client.post("/v1/search", json={"query": "river"}),
        client.put("/v1/passages", json={"passages": [{"text": "x"}]}),
        client.get("/ready"),
        client.get("/v1/info"),
    ):
        assert reply.status_code == 503 and "not there any more" in reply.json()["error"]
        assert str(tmp_path) not in reply.text and reply.headers["retry-after"]
    assert client.get("/health").status_code == 200
    assert not path.exists()
    (tmp_path / "aside").rename(path)
    assert client.post("/v1/search", json={"query": "river"}).status_code == 200
    path.rename(tmp_path / "old")
    tiny_index(path, split)
    with Index.open(path, model=split, write=True) as index:
        index.delete(["paris"])
    hits = client.post(
        "/v1/search", json={"query": "the river", "k": 9, "first_stage": "dense"}
    ).json()
    assert {h["id"] for h in hits["hits"]} == {"dracula", "moon", "long"}


def test_nothing_that_was_kept_of_a_replaced_index_is_served(split, tmp_path, monkeypatch):
    path, joint = tmp_path / "i", []
    monkeypatch.setattr(service, "open_joint", lambda s: joint.append(s) or open_joint(s))

    def fill(text):
        with Index.create(path, split, codec="fp32") as index:
            index.add([Passage(id="a", text=text)])
        return tiny_engine(path, split, memory=1 << 20)

    def scores():
        body = {"query": "the river", "documents": [{"id": "a"}]}
        (row,) = client.post("/v2/rerank", json=body).json()["results"]
        body = {"query": "the river", "first_stage": "dense", "joint": True}
        both = client.post("/v1/search", json=body).json()
        return row["relevance_score"], both["joint"]["hits"][0]["text"]

    first = fill("Bram Stoker wrote Dracula")
    first.warm()
    opened = first.index
    with TestClient(create_app(first), base_url="http://127.0.0.1") as client:
        before = scores()
        path.rename(tmp_path / "old")
        alone = fill("Paris is on the river").rerank("the river", ids=["a"])
        assert client.get("/v1/info").json()["passages"] == 1
        score, text = scores()
    assert (score, text) == (pytest.approx(alone[0].score, abs=1e-6), alone[0].text)
    assert score != pytest.approx(before[0], abs=1e-6) and len(joint) == 2
    assert first.index is opened and first.memory.records == 1, "whoever runs it may go on"


def test_a_question_is_answered_before_a_client_asks(split, model, path, tmp_path, monkeypatch):
    asked, run = [], Engine.run

    def noted(engine, requests, **given):
        asked.extend(request.head for request in requests)
        return run(engine, requests, **given)

    monkeypatch.setattr(Engine, "run", noted)
    ask_once(tiny_engine(path, split))
    assert asked == ["span"]
    ranks = Model.split(model("bert", "rank"), at=1)
    ask_once(tiny_engine(tiny_index(tmp_path / "ranks", ranks), ranks))
    assert asked == ["span", "rank"]
    with Index.create(tmp_path / "empty", split, codec="fp32"):
        pass
    ask_once(tiny_engine(tmp_path / "empty", split))
    ask_once(Engine(split))
    assert len(asked) == 2, "nothing to ask"


def test_states_that_are_deleted_are_a_clear_error(client, path):
    import shutil

    shutil.rmtree(path / "states")
    shutil.rmtree(path / "passages.lance")
    reply = client.post("/v1/search", json={"query": "river"})
    assert reply.status_code == 503 and "of i is gone: the index was" in reply.json()["error"]


@pytest.mark.parametrize(
    ("route", "body", "status", "words"),
    [
        ("/v1/search", {"query": ""}, 422, "query: String should have at least 1 character"),
        ("/v1/search", {"query": " "}, 422, "the query is empty; write what to look for"),
        ("/v1/ask", {"question": " \n"}, 422, "the query is empty"),
        ("/v1/ask", {"question": "\u200b \u2060"}, 422, "the query is empty"),
        ("/v1/search", {"query": "x", "k": 0}, 422, "k: Input should be greater"),
        ("/v1/search", {"query": "x", "k": 51}, 422, "limit documents is 50"),
        ("/v1/search", {"query": "x", "candidates": 51}, 422, "limit documents is 50"),
        ("/v1/search", {"query": "x", "where": {"n": {"near": 1}}}, 422, "near"),
        ("/v1/search", {"query": "x" * 1001}, 422, "limit characters is 1,000"),
        ("/v1/ask", {"question": "x", "texts": ["y" * 1001]}, 422, "limit characters is 1,000"),
        (
            "/v1/ask",
            {"question": "x", "texts": ["y"] * 51},
            422,
            "is 51; this server's limit documents",
        ),
        ("/v1/ask", {"question": "x", "ids": ["nobody"]}, 404, "'nobody'"),
        ("/v1/search", {"query": "x", "top_k": 3}, 422, "top_k: no such field"),
        ("/v1/ask", {"question": "x", "filter": {}}, 422, "filter: no such field"),
        ("/v1/nothing", {}, 404, "nothing at this path; /docs"),
        ("/v1/info", {}, 405, "takes GET, not POST"),
    ],
)
def test_what_cannot_be_served_says_why(path, split, route, body, status, words):
    with connect(path, split, limits=Limits(documents=50, characters=1000)) as client:
        reply = client.post(route, json=body)
        assert reply.status_code == status and words in reply.json()["error"]
        assert set(reply.json()) == {"error", "error_type", "request_id"}


@pytest.mark.parametrize("number", ["NaN", "1e400", "-Infinity"])
@pytest.mark.parametrize("size", [1, 100_000, 2_000_000])
def test_numbers_that_json_lacks_are_refused(path, split, number, size):
    body = json.dumps({"query": "x", "documents": [{"text": "a", "more": "?"}], "x": "y" * size})
    with connect(path, split) as client:
        headers = {"content-type": "application/json"}
        reply = client.post("/v1/rerank", content=body.replace('"?"', number), headers=headers)
        assert reply.status_code == 422 and number in reply.text
        huge = {"query": "x", "blend": 1e308, "raw": True}
        assert client.post("/v1/search", json=huge).status_code == 422
        assert client.post("/v1/search", json={**huge, "blend": 1000.0}).status_code == 200


def test_too_many_passages_and_too_long_ones_are_refused(path, split):
    with connect(path, split, limits=Limits(documents=2, characters=10)) as client:
        many = client.put("/v1/passages", json={"passages": [{"text": "x"}] * 3})
        long = client.put("/v1/passages", json={"passages": [{"text": "x" * 11}]})
        assert many.status_code == long.status_code == 422
        assert "limit documents is 2" in many.json()["error"]
        assert "limit characters is 10" in long.json()["error"]
        assert len(Index.open(path)) == len(TEXTS)


def test_a_field_of_a_passage_that_would_be_lost_is_refused(client):
    lost = {"id": "x", "text": "a river", "lang": "en"}
    reply = client.put("/v1/passages", json={"passages": [lost]})
    assert reply.status_code == 422 and "passages.0.lang: no such field" in reply.json()["error"]


def test_head_answers_what_get_answers_without_the_body(client, caplog):
    with caplog.at_level(logging.INFO):
        for route in ("/", "/health", "/ready", "/v1/info", "/static/page.js"):
            head, whole = client.head(route), client.get(route)
            assert head.status_code == 200 and not head.content and whole.content
            assert head.headers["content-length"] == str(len(whole.content))
    assert ("HEAD", "/ready") in {(r.method, r.route) for r in caplog.records if r.msg == "request"}
    assert client.head("/v1/search").status_code == 405


def test_a_body_that_is_no_plain_json_says_so(client):
    kind = {"content-type": "application/json"}
    packed = client.post("/v1/search", content=b"x", headers={**kind, "content-encoding": "gzip"})
    assert packed.status_code == 415 and "'gzip'" in packed.json()["error"]
    latin = client.post("/v1/search", content='{"query": "é"}'.encode("latin-1"), headers=kind)
    assert latin.status_code == 400 and "not JSON in UTF-8" in latin.json()["error"]
    never = client.post("/v1/ask", content=b'{"question": "x", "threshold": NaN}', headers={**kind})
    assert never.status_code == 422 and "NaN, which is no number" in never.json()["error"]


def test_a_body_beyond_the_limit_is_not_read(path, split):
    with connect(path, split, limits=Limits(body_bytes=100)) as client:
        reply = client.post("/v1/search", json={"query": "x" * 200})
        assert reply.status_code == 413 and "limit body_bytes is 100" in reply.json()["error"]
        chunks = client.post("/v1/search", content=iter([b"x" * 60, b"x" * 60]))
        assert chunks.status_code == 413


def test_texts_that_utf8_cannot_hold_come_back(client):
    body = '{"query": "a \\ud800", "texts": ["b \\udfff", "c"], "return_text": true}'
    reply = client.post("/rerank", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 200
    assert sorted(r["text"] for r in json.loads(reply.content)) == ["b \udfff", "c"]
    put = {"content": '{"passages": [{"id": "\\ud800", "text": "x"}]}'}
    reply = client.put("/v1/passages", headers={"content-type": "application/json"}, **put)
    assert reply.status_code in (200, 422)
    for meta in ('{"a": "\\ud800"}', '{"\\ud800": 1}'):
        # Of a passage that is there, only the metadata are written.
        for text in ("a new one", "Paris is the capital of France."):
            put = {"content": f'{{"passages": [{{"id": "s", "text": "{text}"}}]}}'}
            headers = {"content-type": "application/json"}
            assert client.put("/v1/passages", headers=headers, **put).status_code == 200
            put = {"content": put["content"].replace('"}]', f'", "meta": {meta}}}]')}
            reply = client.put("/v1/passages", headers=headers, **put)
            assert reply.status_code == 422 and "lone surrogate" in reply.json()["error"]
    client.delete("/v1/passages/s")


def test_keys_are_needed_for_changes(path, split):
    body = {"passages": [{"id": "k", "text": "x"}]}
    with connect(path, split, access=Access(keys=(b"another-one", KEY.encode()))) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": KEY[:-1]}):
            reply = client.put("/v1/passages", json=body, headers=headers)
            assert reply.status_code == 401 and "API key" in reply.json()["error"]
            assert client.delete("/v1/passages/paris", headers=headers).status_code == 401
        assert client.post("/v1/search", json={"query": "x"}).status_code == 200
        for headers in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
            assert client.put("/v1/passages", json=body, headers=headers).status_code == 200
        elsewhere = {"authorization": f"bearer {KEY}", "host": "rank.example.com"}
        assert client.delete("/v1/passages/k", headers=elsewhere).status_code == 200


def test_keys_can_be_needed_for_everything(path, split):
    access = Access(keys=(KEY.encode(),), protect_reads=True)
    with connect(path, split, access=access) as client:
        for reply in (
            client.post("/v1/search", json={"query": "x"}),
            client.get("/v1/info"),
            client.get("/metrics"),
            client.get("/docs"),
        ):
            assert reply.status_code == 401
        assert client.post("/v2/rerank", json={}).json()["message"].startswith("an API key")
        for open_path in ("/health", "/ready", "/"):
            assert client.get(open_path).status_code == 200
        assert client.get("/v1/info", headers={"authorization": f"Bearer {KEY}"}).status_code == 200


def test_without_keys_only_this_machine_changes_the_index(path, split):
    body = {"passages": [{"text": "x"}]}
    with connect(path, split) as client:
        reply = client.put("/v1/passages", json=body, headers={"host": "evil.example.com"})
        assert reply.status_code == 403 and "localhost" in reply.json()["error"]
        assert client.put("/v1/passages", json=body).status_code == 200
    with connect(path, split, access=Access(writes=False)) as client:
        assert client.put("/v1/passages", json=body).status_code == 403
        assert client.delete("/v1/passages/paris").status_code == 403


def test_without_keys_only_named_hosts_are_served(path, split):
    """A page from elsewhere can give this machine's address to a name of its own, and read what it gets."""
    named = {"host": "evil.example:8000"}
    routes = ("/v1/search", "/v1/ask", "/v2/rerank", "/v1/rerank", "/rerank", "/score")
    with connect(path, split) as client:
        for route in routes:
            reply = client.post(route, json={}, headers=named)
            assert reply.status_code == 403 and "'evil.example' without an API key" in reply.text
        for route in ("/v1/info", "/metrics", "/docs", "/openapi.json"):
            assert client.get(route, headers=named).status_code == 403
        for route in ("/health", "/ready", "/", "/static/page.js"):
            assert client.get(route, headers=named).status_code == 200
    for hosts in (("evil.example",), ("*",)):
        with connect(path, split, access=Access(hosts=hosts)) as client:
            assert client.get("/v1/info", headers=named).status_code == 200
            put = {"passages": [{"text": "x"}]}
            assert client.put("/v1/passages", json=put, headers=named).status_code == 403
    with connect(path, split, access=Access(keys=(KEY.encode(),))) as client:
        assert client.get("/v1/info", headers=named).status_code == 403
        with_key = {**named, "x-api-key": KEY}
        assert client.get("/v1/info", headers=with_key).status_code == 200


def test_errors_say_neither_where_files_lie_nor_which_process_writes(client, path, split):
    def told(reply, status, words):
        assert reply.status_code == status and words in reply.json()["error"], reply.text
        assert str(path.parent) not in reply.text and str(os.getpid()) not in reply.text
        assert not re.search(r"[/\\]\w+[/\\]", reply.text)

    put = {"passages": [{"id": "x", "text": "x"}]}
    with Index.open(path, model=split, write=True):
        told(client.put("/v1/passages", json=put), 409, "another process is writing to the index")
    manifest = next((path / "passages.lance" / "_versions").iterdir())
    data = next((path / "passages.lance" / "data").iterdir())
    whole = data.read_bytes()
    data.write_bytes(whole[: len(whole) // 2])
    told(client.post("/v1/search", json={"query": "sea of fog"}), 503, "i ")
    with pytest.raises(DecoupledError, match="damaged"), connect(path, split):
        pass
    data.write_bytes(whole)
    head = manifest.read_bytes()
    manifest.unlink()
    reply = client.post("/v1/search", json={"query": "river"})
    assert str(path.parent) not in reply.text
    manifest.write_bytes(head)
    gone = client.delete("/v1/passages/" + "a/b/c")
    assert gone.status_code == 404 and "'a/b/c'" in gone.json()["error"]


def test_storage_that_cannot_be_written_is_the_servers_fault(client, path, monkeypatch):
    real = type(path).open

    def refuse(self, *args, **options):
        if self.name == "write.lock":
            raise OSError(errno.EROFS, "Read-only file system")
        return real(self, *args, **options)

    monkeypatch.setattr(type(path), "open", refuse)
    put = {"passages": [{"id": "x", "text": "x"}]}
    reply = client.put("/v1/passages", json=put)
    assert reply.status_code == 503 and reply.json()["error_type"] == "index"
    assert "i cannot be written (Read-only file system)" in reply.json()["error"]
    assert str(path.parent) not in reply.text


def test_which_hosts_are_local():
    for host in (
        "localhost",
        "localhost:8000",
        "127.0.0.1:80",
        "[::1]:8000",
        "::1",
        "app.localhost",
    ):
        assert is_local(host), host
    for host in ("", "0.0.0.0", "10.0.0.1", "127.0.0.1.evil.com", "localhost.evil.com", "[::2]:1"):
        assert not is_local(host), host


def test_key_files(tmp_path):
    from decoupled.errors import InputError

    file = tmp_path / "keys"
    file.write_text(f"# ours\n\n{KEY}\n  second \n")
    assert read_keys(file) == (KEY.encode(), b"second")
    file.write_text("# none\n")
    with pytest.raises(InputError, match="holds no key"):
        read_keys(file)
    with pytest.raises(InputError, match="cannot be read"):
        read_keys(tmp_path / "missing")


def test_other_sites_may_call_only_when_named(path, split):
    asking = {"origin": "https://app.example.com", "access-control-request-method": "POST"}
    with connect(path, split) as client:
        assert (
            "access-control-allow-origin"
            not in client.options("/v1/search", headers=asking).headers
        )
    with connect(path, split, origins=["https://app.example.com"]) as client:
        allowed = client.options("/v1/search", headers=asking)
        assert allowed.headers["access-control-allow-origin"] == "https://app.example.com"
        other = client.options(
            "/v1/search", headers={**asking, "origin": "https://evil.example.com"}
        )
        assert "access-control-allow-origin" not in other.headers
        refused = client.post("/v1/search", json={}, headers={"origin": "https://app.example.com"})
        assert refused.status_code == 422 and refused.headers["access-control-allow-origin"]
        assert refused.headers["access-control-expose-headers"] == "*"


def test_logs_hold_ids_of_requests_and_no_text_or_key(client, caplog):
    with caplog.at_level(logging.DEBUG):
        headers = {"x-request-id": "mine-1", "authorization": f"Bearer {KEY}"}
        reply = client.post("/v1/search", json={"query": "xylophone zither"}, headers=headers)
        assert reply.headers["x-request-id"] == "mine-1"
        client.post("/v1/search", json={"query": 7, "secret": "zither"}, headers=headers)
        client.delete("/v1/passages/zither")
        odd = client.get("/health", headers={"x-request-id": "a b\tc"})
        assert odd.headers["x-request-id"] != "a b\tc"
    (line,) = [
        r for r in caplog.records if getattr(r, "request_id", "") == "mine-1" and r.status == 200
    ]
    assert (line.route, line.method) == ("/v1/search", "POST") and 0.5 < line.ms < 5000
    everything = " ".join(
        str(vars(record)) for record in caplog.records if not record.name.startswith("httpx")
    )
    assert "zither" not in everything and KEY not in everything


def test_figures_for_prometheus(client):
    from prometheus_client.parser import text_string_to_metric_families

    for _ in range(2):
        client.post("/rerank", json={"query": "river", "texts": ["a", "b"]})
    client.post("/v1/search", json={"query": ""})
    page = client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    samples = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(page.text)
        for s in family.samples
    }
    assert samples["decoupled_requests_total", (("route", "/rerank"), ("status", "200"))] == 2
    assert samples["decoupled_requests_total", (("route", "/v1/search"), ("status", "422"))] == 1
    assert samples["decoupled_batch_size_count", (("queue", "read"),)] == 2
    assert samples["decoupled_queue_depth", (("queue", "read"),)] == 0
    assert samples["decoupled_stage_seconds_count", (("stage", "cross"),)] == 2
    assert samples["decoupled_stage_seconds_sum", (("stage", "cross"),)] > 0
    assert samples["decoupled_text_cache_hits", ()] == 2
    assert samples["decoupled_text_cache_misses", ()] == 2


def test_figures_of_the_states_in_memory(path, split):
    app = create_app(tiny_engine(path, split, memory=1 << 20))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for _ in range(2):
            client.post("/v1/ask", json={"question": "river", "ids": ["paris", "moon"]})
    figure = app.state.service.metrics.registry.get_sample_value
    names = ("hits", "misses", "evicted", "records", "budget")
    assert [figure(f"decoupled_state_cache_{n}") for n in names] == [2, 2, 0, 2, 1 << 20]
    assert figure("decoupled_state_cache_bytes") > 0 and figure("decoupled_text_cache_hits") is None


def test_the_description_has_every_route_and_an_example(client):
    schema = client.get("/openapi.json").json()
    assert set(schema["paths"]) == {
        "/v1/search",
        "/v1/ask",
        "/v1/passages",
        "/v1/passages/{ident}",
        "/v1/documents/{name}",
        "/v1/source/{ident}",
        "/v1/info",
        "/health",
        "/ready",
        "/metrics",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/score",
        "/v1/score",
        "/v1/embeddings",
    }
    page = client.get("/docs")
    parts = re.findall(r"(?:href|src|url)\W+([^'\"]+)", page.text)
    assert {client.get(part).status_code for part in parts} == {200} and "openapi.json" in parts
    assert "http" not in page.text and "'none'" in page.headers["content-security-policy"]
    bodies = schema["components"]["schemas"]
    for name in ("CohereV2", "RerankV1", "Tei", "Score"):
        assert bodies[name]["example"]


def test_importing_the_server_starts_nothing():
    import subprocess
    import sys

    code = (
        "import sys, threading, decoupled.serve.http.app\n"
        "assert threading.active_count() == 1\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_questions_to_try_come_from_headings():
    titles = [
        "Guide › 1. Preface",
        "Guide › 2.1. How to back up",
        "Guide › What is a view?",
        "",
        "x",
    ]
    assert heading_questions(titles) == ["How to back up?", "What is a view?"]
    short = heading_questions(
        ["A › Limits", "A › Limits", "B › Write-ahead log", "C › " + "long " * 9]
    )
    assert short == ["What is Limits?", "What is Write-ahead log?"]
    assert heading_questions(["git › HOW TO RESOLVE CONFLICTS"]) == ["How to resolve conflicts?"]
    assert heading_questions([]) == []


def test_info_names_the_index_and_offers_questions(client):
    facts = client.get("/v1/info").json()
    assert facts["name"] and not facts["name"].endswith(".idx") and "samples" in facts


def test_json_is_counted_however_its_type_is_written(client):
    deep = b'{"question":"x","where":%s' % (b'{"a":' * 100_000)
    reply = client.post("/v1/ask", content=deep, headers={"content-type": "Application/JSON"})
    assert reply.status_code == 422 and "limit depth is 64" in reply.json()["error"]
