"""The clients that people already have, against a live server: their answers are the engine's own."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import decoupled as dc
from live import serving

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when haystack is imported

EXAMPLES = Path(__file__).parents[2] / "examples"
KEY = "s3cret"
QUERY = "What is the capital of France?"
TEXTS = ["The capital of Brazil is Brasilia.", "The capital of France is Paris.", "Lyon is a city."]


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    path = tmp_path_factory.mktemp("clients") / "books.idx"
    with dc.Index.create(path) as index:
        index.add(dc.Passage(id=f"p{n}", text=text) for n, text in enumerate(TEXTS))
    return path


@pytest.fixture(scope="module")
def url(books, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n")
    with serving(books, "--api-key-file", keys, "--protect-reads") as address:
        yield address


@pytest.fixture(scope="module")
def expected(books):
    """Place and score of each text, best first, by the engine in this process."""
    hits = dc.Engine(books).rerank(QUERY, texts=TEXTS)
    return [(int(hit.id), pytest.approx(hit.score, abs=1e-4)) for hit in hits]


def post(url: str, path: str, body: Any) -> Any:
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    data = json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data, headers)) as answer:
        return json.load(answer)


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("client", ["ClientV2", "Client"])
def test_cohere(url, expected, client):
    cohere = pytest.importorskip("cohere")
    sdk = getattr(cohere, client)(KEY, base_url=url)
    found = sdk.rerank(model="rerank-v4.0-pro", query=QUERY, documents=TEXTS)
    assert [(r.index, r.relevance_score) for r in found.results] == expected
    assert found.meta.billed_units.search_units == 1
    assert found.meta.api_version.version == ("2" if client == "ClientV2" else "1")
    best = sdk.rerank(model="any", query=QUERY, documents=TEXTS, top_n=1).results
    assert [(r.index, r.relevance_score) for r in best] == expected[:1]


def test_cohere_v1_takes_objects_and_returns_documents_only_on_request(url, expected):
    cohere = pytest.importorskip("cohere")
    sdk = cohere.Client(KEY, base_url=url)
    documents = [{"text": text, "page": str(n)} for n, text in enumerate(TEXTS)]
    bare = sdk.rerank(query=QUERY, documents=documents, rank_fields=["text"])
    assert all(r.document is None for r in bare.results)
    full = sdk.rerank(query=QUERY, documents=TEXTS, return_documents=True)
    assert [(r.index, r.relevance_score) for r in full.results] == expected
    assert full.results[0].document.text == TEXTS[1]


def test_the_errors_of_the_sdk_are_its_own(url):
    cohere = pytest.importorskip("cohere")
    with pytest.raises(cohere.UnauthorizedError) as refused:
        cohere.ClientV2("wrong", base_url=url).rerank(model="any", query="q", documents=["d"])
    assert "API key" in refused.value.body["message"]
    with pytest.raises(cohere.BadRequestError):
        cohere.ClientV2(KEY, base_url=url).rerank(model="any", query="q", documents=[])


def test_the_async_client_of_cohere(url, expected):
    import asyncio

    cohere = pytest.importorskip("cohere")

    async def rerank():
        sdk = cohere.AsyncClientV2(KEY, base_url=url)
        many = [sdk.rerank(model="any", query=QUERY, documents=TEXTS) for _ in range(8)]
        return await asyncio.gather(*many)

    for found in asyncio.run(rerank()):
        assert [(r.index, r.relevance_score) for r in found.results] == expected


def test_langchain(url):
    pytest.importorskip("langchain_cohere")
    first, second = example("client_langchain").main(url, KEY)
    assert "Bram Stoker" in first.page_content
    assert 1 >= first.metadata["relevance_score"] > second.metadata["relevance_score"] >= 0


def test_llama_index(url):
    pytest.importorskip("llama_index.postprocessor.cohere_rerank")
    first, second = example("client_llama_index").main(url, KEY)
    assert "Bram Stoker" in first.node.get_content() and 1 >= first.score > second.score >= 0


def test_the_cohere_example(url):
    pytest.importorskip("cohere")
    assert all("Bram Stoker" in text for text in example("client_cohere").main(url, KEY))


def test_the_haystack_example():
    pytest.importorskip("haystack")
    [answer] = example("haystack_answers").main()
    assert answer.data == "Bram Stoker"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_example(url):
    done = subprocess.run(
        ["sh", EXAMPLES / "client_curl.sh", url, KEY], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    added, asked, searched, v2, v1, tei, vllm, deleted, info = map(
        json.loads, done.stdout.splitlines()
    )
    assert added["added"] == 1 and asked["answers"][0]["text"] == "Bram Stoker"
    assert searched["hits"][0]["id"] == "dracula" and v2["results"][0]["index"] == 1
    assert v1["results"][0]["index"] == 1 and "Stoker" in v1["results"][0]["document"]["text"]
    assert tei[0]["index"] == 1 and vllm["data"][1]["score"] == pytest.approx(tei[0]["score"])
    assert deleted["deleted"] == 1 and info["passages"] == len(TEXTS)


def test_the_requests_that_text_embeddings_inference_documents(url, expected):
    found = post(url, "/rerank", {"query": QUERY, "texts": TEXTS})
    assert [(row["index"], row["score"]) for row in found] == expected
    assert all(set(row) == {"index", "score"} for row in found)
    options = {"raw_scores": True, "return_text": True, "truncate": True}
    raw = post(url, "/rerank", {"query": QUERY, "texts": TEXTS, **options})
    assert [row["index"] for row in raw] == [place for place, _ in expected]
    assert [row["text"] for row in raw] == [TEXTS[place] for place, _ in expected]
    assert raw[0]["score"] > 1  # logits, not probabilities


def test_the_requests_that_vllm_documents(url, expected):
    model = "BAAI/bge-reranker-v2-m3"
    body = {"model": model, "encoding_format": "float", "text_1": QUERY, "text_2": TEXTS}
    found = post(url, "/score", body)
    assert found["object"] == "list" and found["model"] == model and found["id"].startswith("score")
    assert [(row["index"], row["object"]) for row in found["data"]] == [
        (place, "score") for place in range(len(TEXTS))
    ]
    assert {row["index"]: row["score"] for row in found["data"]} == dict(expected)
    pairs = post(url, "/v1/score", {"model": model, "text_1": [QUERY] * 3, "text_2": TEXTS})
    assert {row["index"]: row["score"] for row in pairs["data"]} == dict(expected)
    one = post(url, "/score", {"model": model, "queries": QUERY, "documents": TEXTS[1]})
    assert [row["score"] for row in one["data"]] == [expected[0][1]]
    for path in ("/rerank", "/v1/rerank"):
        ranked = post(url, path, {"model": model, "query": QUERY, "documents": TEXTS})
        rows = [(row["index"], row["relevance_score"]) for row in ranked["results"]]
        assert rows == expected and ranked["usage"]["total_tokens"] > 0
        assert ranked["results"][0]["document"]["text"] == TEXTS[1]


def test_the_request_that_jina_documents(url, expected):
    body = {"model": "jina-reranker-v2-base-multilingual", "query": QUERY, "documents": TEXTS}
    found = post(url, "/v1/rerank", {**body, "top_n": 2})
    assert [(r["index"], r["relevance_score"]) for r in found["results"]] == expected[:2]
    assert found["model"] == body["model"] and found["usage"]["total_tokens"] > 0
    assert [r["document"]["text"] for r in found["results"]] == [
        TEXTS[place] for place, _ in expected[:2]
    ]


def test_documents_by_id_use_what_is_stored(url, expected):
    documents = [{"id": f"p{n}"} for n in range(len(TEXTS))]
    found = post(url, "/v2/rerank", {"model": "any", "query": QUERY, "documents": documents})
    # Texts of the caller skip the layers of the vector: another graph, rounded elsewhere.
    for result, (place, score) in zip(found["results"], expected, strict=True):
        assert result["index"] == place
        assert result["relevance_score"] == pytest.approx(score.expected, abs=1e-2)
