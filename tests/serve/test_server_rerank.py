"""The rerank APIs of Cohere, Jina, Text Embeddings Inference and vLLM: fields, defaults, order, errors."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from decoupled.serve.http.app import create_app
from decoupled.serve.http.limits import Limits
from served import TEXTS, tiny_engine, tiny_index, tiny_split

QUERY = "which river runs past the town"
DOCUMENTS = ["count Dracula", "the river of the town", "a novel", "the sea and the moon"]
COHERE = {"x-fern-sdk-name": "cohere", "user-agent": "cohere/5.21.1"}


@pytest.fixture(scope="module")
def engine(model, tmp_path_factory):
    split = tiny_split(model)
    return tiny_engine(tiny_index(tmp_path_factory.mktemp("rerank") / "i", split), split)


@pytest.fixture(scope="module")
def client(engine):
    limits = Limits(documents=20)
    with TestClient(create_app(engine, limits=limits), base_url="http://localhost") as opened:
        yield opened


@pytest.fixture(scope="module")
def order(engine):
    """Places of DOCUMENTS, best first, with their probabilities."""
    return [(int(h.id), h.score) for h in engine.rerank(QUERY, texts=DOCUMENTS)]


def rows(results, score="relevance_score"):
    return [(r["index"], pytest.approx(r[score], abs=1e-5)) for r in results]


def test_cohere_v2(client, order):
    body = {"model": "rerank-v4.0-pro", "query": QUERY, "documents": DOCUMENTS, "priority": 5}
    answer = client.post("/v2/rerank", json=body, headers={"authorization": "bearer x"}).json()
    assert set(answer) == {"id", "results", "meta"}
    assert order == rows(answer["results"])
    assert all(set(r) == {"index", "relevance_score"} for r in answer["results"])
    assert answer["meta"] == {
        "api_version": {"version": "2", "is_experimental": False},
        "billed_units": {"search_units": 1},
    }
    few = client.post("/v2/rerank", json={**body, "top_n": 2}).json()["results"]
    assert order[:2] == rows(few)
    assert (
        client.post("/v2/rerank", json={**body, "top_n": 99}).json()["results"] == answer["results"]
    )


def test_cohere_v1_returns_documents_when_asked(client, order):
    body = {
        "query": QUERY,
        "documents": [{"text": t, "n": str(n)} for n, t in enumerate(DOCUMENTS)],
    }
    plain = client.post("/v1/rerank", json=body, headers=COHERE).json()
    assert order == rows(plain["results"]) and "document" not in plain["results"][0]
    assert plain["meta"]["api_version"] == {"version": "1", "is_experimental": False}
    full = client.post("/v1/rerank", json={**body, "return_documents": True}, headers=COHERE).json()
    best = order[0][0]
    assert full["results"][0]["document"] == {"text": DOCUMENTS[best], "n": str(best)}
    own = client.post("/v1/rerank", json={**body, "max_chunks_per_doc": 10}).json()
    assert "document" not in own["results"][0]


def test_cohere_v1_rank_fields(client, engine):
    rows_ = [
        {"title": "Dracula", "body": "a count"},
        {"title": "Paris", "body": "a river", "id": "x"},
    ]
    body = {"query": QUERY, "documents": rows_, "rank_fields": ["title", "body"]}
    answer = client.post("/v1/rerank", json={**body, "return_documents": True}).json()["results"]
    texts = ["title: Dracula\nbody: a count", "title: Paris\nbody: a river"]
    assert [(int(h.id), h.score) for h in engine.rerank(QUERY, texts=texts)] == rows(answer)
    assert answer[0]["document"]["title"] == rows_[answer[0]["index"]]["title"]
    none = client.post("/v1/rerank", json={"query": QUERY, "documents": [{"body": "x"}]})
    assert none.status_code == 422 and "documents.0" in none.json()["message"]


def test_jina_returns_documents_unless_told_not_to(client, order):
    body = {
        "model": "jina-reranker-v2",
        "query": {"text": QUERY},
        "documents": [*DOCUMENTS[:3], {"text": DOCUMENTS[3]}],
    }
    answer = client.post("/v1/rerank", json=body).json()
    assert answer["model"] == "jina-reranker-v2" and answer["usage"]["total_tokens"] > 10
    assert order == rows(answer["results"])
    for row in answer["results"]:
        assert row["document"] == {"text": DOCUMENTS[row["index"]]}
    bare = client.post("/v1/rerank", json={**body, "return_documents": False, "top_n": 1}).json()
    assert order[:1] == rows(bare["results"]) and "document" not in bare["results"][0]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_vllm_rerank(client, order, engine, path):
    body = {"model": "m", "query": QUERY, "documents": DOCUMENTS, "top_n": 0, "user": "u"}
    answer = client.post(path, json=body).json()
    assert order == rows(answer["results"]) and answer["id"] and answer["model"] == "m"
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0
    assert answer["results"][0]["document"]["text"] == DOCUMENTS[order[0][0]]
    one = client.post(path, json={**body, "documents": DOCUMENTS[1]}).json()["results"]
    assert len(one) == 1
    raw = client.post(path, json={**body, "use_activation": False}).json()["results"]
    assert raw[0]["relevance_score"] == pytest.approx(
        engine.rerank(QUERY, texts=DOCUMENTS, raw=True)[0].score, abs=1e-5
    )


def test_tei(client, order, engine):
    body = {"query": QUERY, "texts": DOCUMENTS}
    answer = client.post("/rerank", json=body)
    assert order == rows(answer.json(), "score")
    assert all(set(r) == {"index", "score"} for r in answer.json())
    full = client.post("/rerank", json={**body, "return_text": True, "raw_scores": True}).json()
    alone = engine.rerank(QUERY, texts=DOCUMENTS, raw=True)
    assert [(int(h.id), h.score) for h in alone] == rows(full, "score")
    assert [r["text"] for r in full] == [h.text for h in alone]
    for name in ("x-compute-type", "x-compute-time", "x-compute-characters", "x-compute-tokens"):
        assert answer.headers[name]
    for name in ("x-total-time", "x-queue-time", "x-inference-time"):
        assert int(answer.headers[name]) >= 0


def test_tei_truncates_only_when_asked(client, engine):
    long = "the novel " * 300 + "river town " * 10
    tokens = engine.spec.text.passage_tokens - 1

    def score(**options):
        body = {"query": QUERY, "texts": [long], "raw_scores": True, **options}
        return client.post("/rerank", json=body).json()[0]["score"]

    (first,) = engine.rerank(QUERY, texts=[" ".join(long.split()[:tokens])], raw=True)
    assert score(truncate=True) == pytest.approx(first.score, abs=1e-4)
    words = long.split()[-tokens:]
    (last,) = engine.rerank(QUERY, texts=[" ".join(words)], raw=True)
    assert score(truncate=True, truncation_direction="Left") == pytest.approx(last.score, abs=1e-4)
    (whole,) = engine.rerank(QUERY, texts=[long], raw=True)
    assert score() == pytest.approx(whole.score, abs=1e-4)


def test_cohere_cuts_long_documents(client, engine):
    body = {"query": QUERY, "documents": ["the river " * 400], "max_tokens_per_doc": 4}
    (row,) = client.post("/v2/rerank", json=body).json()["results"]
    (cut,) = engine.rerank(QUERY, texts=["the river the river"])
    assert row["relevance_score"] == pytest.approx(cut.score, abs=1e-5)


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    "names",
    [("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2")],
)
def test_vllm_score_keeps_the_order_of_the_input(client, order, path, names):
    answer = client.post(path, json={"model": "m", names[0]: QUERY, names[1]: DOCUMENTS}).json()
    assert set(answer) == {"id", "object", "created", "model", "data", "usage"}
    assert answer["object"] == "list" and answer["id"].startswith("score-")
    assert [r["index"] for r in answer["data"]] == [0, 1, 2, 3]
    assert all(r["object"] == "score" for r in answer["data"])
    assert sorted(order) == rows(answer["data"], "score")


def test_vllm_score_of_pairs(client, engine):
    queries = [QUERY, "a novel", QUERY]
    texts = ["the town", "the book", {"id": "moon"}]
    data = client.post("/score", json={"text_1": queries, "text_2": texts}).json()["data"]
    for n, (query, text) in enumerate(zip(queries, texts, strict=True)):
        given = {"texts": [text]} if isinstance(text, str) else {"ids": ["moon"]}
        assert data[n]["score"] == pytest.approx(engine.rerank(query, **given)[0].score, abs=1e-5)
    one = client.post("/score", json={"text_1": QUERY, "text_2": "the town"}).json()["data"]
    assert one == [{**data[0], "score": pytest.approx(data[0]["score"], abs=1e-6)}]


def test_documents_by_id_use_what_is_stored(client, engine):
    documents = ["a town", {"id": "paris"}, {"id": "moon"}, "x", {"id": "paris"}]
    expected = {
        h.id: h.score for h in engine.rerank(QUERY, ids=["paris", "moon"], texts=["a town", "x"])
    }
    expected = [
        expected["0"],
        expected["paris"],
        expected["moon"],
        expected["1"],
        expected["paris"],
    ]
    for path, score in (("/v2/rerank", "relevance_score"), ("/v1/rerank", "relevance_score")):
        results = client.post(path, json={"query": QUERY, "documents": documents}).json()["results"]
        assert sorted(r["index"] for r in results) == [0, 1, 2, 3, 4]
        for row in results:
            assert row[score] == pytest.approx(expected[row["index"]], abs=1e-5)
    texts = {r["index"]: r["document"]["text"] for r in results}
    assert texts[1] == TEXTS["paris"] == texts[4] and texts[3] == "x"
    tei = client.post(
        "/rerank", json={"query": QUERY, "texts": documents, "return_text": True}
    ).json()
    assert {r["index"]: r["text"] for r in tei} == texts


def test_an_id_that_looks_like_a_place_is_no_confusion(client):
    put = {"passages": [{"id": "#0", "text": "one"}, {"id": "0", "text": "two"}]}
    assert client.put("/v1/passages", json=put).status_code == 200
    body = {"query": QUERY, "documents": ["three", {"id": "#0"}, {"id": "0"}]}
    results = client.post("/v1/rerank", json=body).json()["results"]
    texts = {r["index"]: r["document"]["text"] for r in results}
    assert texts == {0: "three", 1: "one", 2: "two"}


def test_equal_documents_keep_their_order(client):
    body = {"query": QUERY, "documents": ["same", "same", "same"]}
    assert [r["index"] for r in client.post("/v2/rerank", json=body).json()["results"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v2/rerank", {"query": QUERY}, 422, "documents: Field required"),
        ("/v2/rerank", {"query": QUERY, "documents": []}, 400, "documents"),
        ("/v1/rerank", {"query": QUERY, "documents": []}, 400, "documents"),
        ("/v2/rerank", {"query": "", "documents": ["x"]}, 422, "query"),
        ("/v2/rerank", {"query": QUERY, "documents": ["x"], "top_n": 0}, 422, "top_n"),
        ("/v1/rerank", {"query": QUERY, "documents": ["x"], "top_n": -1}, 422, "top_n"),
        ("/v2/rerank", {"query": QUERY, "documents": ["x"] * 21}, 422, "limit documents is 20"),
        (
            "/v2/rerank",
            {"query": QUERY, "documents": [{"id": "no"}, {"id": "none"}]},
            404,
            "'no', 'none'",
        ),
        ("/v1/rerank", {"query": QUERY, "documents": [{"id": "nobody"}]}, 404, "'nobody'"),
    ],
)
def test_errors_of_cohere_and_jina(client, path, body, status, words):
    reply = client.post(path, json=body)
    assert reply.status_code == status
    assert {"id", "message"} <= set(reply.json()) and reply.json()["detail"] == reply.json()[
        "message"
    ]
    assert words in reply.json()["message"]


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"query": QUERY, "texts": []}, 400, "Empty"),
        ({"query": QUERY, "texts": ["x"] * 21}, 413, "Validation"),
        ({"query": QUERY}, 422, "Validation"),
        ({"query": QUERY, "texts": [{"id": "nobody"}]}, 404, "Validation"),
    ],
)
def test_errors_of_tei(client, body, status, kind):
    reply = client.post("/rerank", json=body)
    assert reply.status_code == status and set(reply.json()) == {"error", "error_type"}
    assert reply.json()["error_type"] == kind and reply.json()["error"]
    assert "tei" not in reply.json()["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "give queries and documents"),
        ({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "2 queries and 3 documents"),
        ({"text_1": [], "text_2": ["c"]}, "must not be empty"),
        ({"text_1": "a", "text_2": "b", "normalize": True}, "use_activation"),
    ],
)
def test_errors_of_vllm(client, body, words):
    reply = client.post("/score", json=body)
    assert reply.status_code == 400 and words in reply.json()["error"]["message"]
    assert reply.json()["error"]["type"] == "BadRequestError"
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


def test_pairs_count_together_however_many_queries_they_have(client):
    texts = [f"document {n}" for n in range(21)]
    pairs = {"text_1": [f"query {n}" for n in range(21)], "text_2": texts}
    reply = client.post("/score", json=pairs)
    assert reply.status_code == 422 and "limit documents is 20" in reply.json()["error"]["message"]
    fewer = {side: values[:20] for side, values in pairs.items()}
    assert client.post("/score", json=fewer).status_code == 200


def test_a_model_without_that_head_says_so(model):
    from decoupled.search.engine import Engine

    app = create_app(Engine(model("bert", "span")))
    with TestClient(app, base_url="http://localhost") as client:
        reply = client.post("/rerank", json={"query": "a", "texts": ["b"]})
        assert reply.status_code == 424 and reply.json()["error_type"] == "Backend"
        assert "rank" in reply.json()["error"]
