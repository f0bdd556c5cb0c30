"""OpenAI's /v1/embeddings, and pruned texts in the vendors' shapes."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from fastapi.testclient import TestClient

import decoupled as dc
from decoupled.model.folder import starter_model
from decoupled.serve.http.app import create_app

TEXT = "The moon is far away. Bram Stoker wrote Dracula in 1897. Otters eat fish."


@pytest.fixture(scope="module")
def client():
    engine = dc.Engine(starter_model())
    with TestClient(create_app(engine), base_url="http://localhost") as client:
        client.engine = engine
        yield client


def test_embeddings_in_openais_shape(client):
    reply = client.post("/v1/embeddings", json={"input": [TEXT, "otters"], "model": "any"}).json()
    assert reply["object"] == "list" and reply["model"] == "any" and reply["usage"]["total_tokens"]
    assert [one["index"] for one in reply["data"]] == [0, 1]
    expected = client.engine.embed([TEXT, "otters"])
    assert np.allclose([one["embedding"] for one in reply["data"]], expected, atol=1e-5)
    body = {"input": "otters", "encoding_format": "base64"}
    packed = client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    unpacked = np.frombuffer(base64.b64decode(packed), "<f4")
    assert np.allclose(unpacked, expected[1], atol=1e-2)
    wrong = client.post("/v1/embeddings", json={"input": []})
    assert wrong.status_code == 422 and wrong.json()["error"]["type"] == "invalid_request_error"


def test_pruned_text_comes_where_it_is_asked_for(client):
    body = {
        "query": "Who wrote Dracula?",
        "texts": [TEXT, "Otters swim in lakes, and they eat fish and frogs."],
    }
    plain = client.post("/rerank", json=body).json()
    pruned = client.post("/rerank", json={**body, "prune": "auto"}).json()
    assert [set(one) for one in plain] == [{"index", "score"}] * 2
    assert [one["score"] for one in plain] == [one["score"] for one in pruned]
    assert pruned[0]["pruned_text"] == "… Bram Stoker wrote Dracula in 1897. …"
    assert pruned[1]["pruned_text"] == ""
    v1 = {"query": body["query"], "documents": body["texts"], "prune": 0.5}
    assert "Stoker" in client.post("/v1/rerank", json=v1).json()["results"][0]["pruned_text"]
    assert client.post("/rerank", json={**body, "prune": 2}).status_code == 422
