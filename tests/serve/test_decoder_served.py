"""A decoder behind every door: HTTP in two vendors' shapes, agents, `CrossEncoder` and LangChain."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

import decoupled as dc
from decoders import AFTER, BEFORE, PASSAGES, QUERIES, save_decoder
from decoupled.integrations.cross_encoder import CrossEncoder
from decoupled.serve.http.app import create_app
from decoupled.serve.mcp import tools
from decoupled.serve.mcp.source import McpSource
from served import listening

STORED = {f"p{n}": text for n, text in enumerate(PASSAGES)}


@pytest.fixture(scope="module", params=["kv", "state"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys and values of a Qwen3 that reads the passage first, and states of a Gemma that does not."""
    folder = tmp_path_factory.mktemp(request.param)
    family, order = ("qwen3", AFTER) if request.param == "kv" else ("gemma", BEFORE)
    save_decoder(folder / "theirs", family, order)
    joint = dc.Model.open(folder / "theirs")
    dc.Model.split(joint, at=2, store=request.param).save(folder / "model")
    with dc.Index.create(folder / "docs.idx", folder / "model", codec="fp32") as made:
        made.add(dc.Passage(id=name, text=text) for name, text in STORED.items())
    return folder / "docs.idx"


def test_a_decoder_behind_every_door(index: Path) -> None:
    engine, query = dc.Engine(index), QUERIES[0]
    expected = [
        (h.id, pytest.approx(h.score, abs=1e-4)) for h in engine.rerank(query, texts=PASSAGES)
    ]
    with listening(create_app(engine)) as address:
        body: dict[str, Any] = {"query": query, "documents": list(PASSAGES)}
        for route in ("/v1/rerank", "/v2/rerank"):
            rows = httpx.post(address + route, json=body, timeout=30).json()["results"]
            assert [(str(r["index"]), r["relevance_score"]) for r in rows] == expected
        hits = httpx.post(f"{address}/v1/search", json={"query": query}, timeout=30).json()["hits"]
    stored = {
        h.id: pytest.approx(h.score, abs=1e-4) for h in engine.rerank(query, ids=list(STORED))
    }
    assert hits and all(stored[hit["id"]] == hit["score"] for hit in hits)
    ranked = CrossEncoder(engine).rank(query, list(PASSAGES))
    assert [(str(row["corpus_id"]), row["score"]) for row in ranked] == expected
    source = McpSource([index])
    source.start()

    async def run() -> None:
        async def tell(*_: object) -> None:
            return

        service, _ = await source.service(tell)
        answer = await tools.search(service, query, 3, None, 900)
        assert answer["passages"][0]["id"] == hits[0]["id"]
        await source.close()

    asyncio.run(run())


def test_langchain_ranks_with_a_decoder(index: Path) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document

    from decoupled.integrations.langchain import DecoupledRerank

    engine = dc.Engine(index)
    documents = [Document(page_content=text) for text in PASSAGES]
    kept = DecoupledRerank(engine=engine, top_n=4).compress_documents(documents, QUERIES[0])
    best = engine.rerank(QUERIES[0], texts=PASSAGES)
    assert [d.page_content for d in kept] == [PASSAGES[int(hit.id)] for hit in best]
