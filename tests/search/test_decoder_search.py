"""Decoders from index to answers: stored scores are direct ones, in torch, through engine and command."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import Commands, jsonl
from decoders import (
    AFTER,
    PASSAGES,
    QUERIES,
    decoder_tokenizer,
    prompt_ids,
    reference_score,
    save_decoder,
)
from decoupled.index.index import Index
from decoupled.measure.counts import work
from decoupled.model.model import Model
from decoupled.model.prompts import TEMPLATES
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine

STORED = [Passage(id=f"p{n}", text=text) for n, text in enumerate(PASSAGES)]


def by_id(engine: Engine, query: str, **how: object) -> dict[str, float]:
    return {hit.id: hit.score for hit in engine.rerank(query, raw=True, **how)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("at", "store"), [(1, "kv"), (2, "kv"), (4, "kv"), (2, "state"), (4, "state")]
)
def test_stored_scores_are_direct_ones(tmp_path: Path, at: int, store: str) -> None:
    theirs = save_decoder(tmp_path / "theirs", "qwen3", AFTER)
    model = Model.split(Model.open(tmp_path / "theirs"), at=at, store=store)  # type: ignore[arg-type]
    index = Index.create(tmp_path / "idx", model, codec="fp32")
    index.add(STORED)
    engine, tokenizer, ids = (
        Engine(index, runtime="torch"),
        decoder_tokenizer(),
        [p.id for p in STORED],
    )
    for query in QUERIES:
        stored = by_id(engine, query, ids=ids)
        direct = by_id(engine, query, texts=list(PASSAGES))
        assert list(direct.values()) and stored == pytest.approx(
            {f"p{n}": score for n, score in direct.items()}, abs=1e-5
        )
        if store == "kv":
            expected = [
                reference_score(
                    theirs, tokenizer, AFTER, prompt_ids(tokenizer, AFTER.pieces, query, text)
                )
                for text in PASSAGES
            ]
            assert [stored[one] for one in ids] == pytest.approx(expected, abs=1e-4)


def test_a_published_decoder_is_split_indexed_and_searched_by_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder called as the model is needs no template, and runs on OpenVINO as in torch."""
    run = Commands(monkeypatch, capsys)
    checkpoint = tmp_path / "Qwen3-Reranker-0.6B"
    save_decoder(checkpoint, "qwen3", TEMPLATES["qwen3-reranker"])
    (checkpoint / "template.json").unlink()
    docs = jsonl(tmp_path / "docs.jsonl", [{"id": p.id, "text": p.text} for p in STORED])
    model, index = tmp_path / "model", tmp_path / "docs.idx"
    assert run("split", checkpoint, "-o", model, "--at", 2).code == 0
    assert run("index", docs, "-o", index, "--model", model).code == 0
    hits = run("search", index, QUERIES[0], "--json").json["hits"]
    assert hits and {hit["id"] for hit in hits} <= {p.id for p in STORED}
    torch = run("search", index, QUERIES[0], "--json", "--runtime", "torch").json["hits"]
    assert [hit["id"] for hit in hits] == [hit["id"] for hit in torch]
    assert [hit["score"] for hit in hits] == pytest.approx([h["score"] for h in torch], abs=1e-3)
    wrong = run("split", checkpoint, "-o", tmp_path / "kv", "--at", 2, "--store", "kv")
    assert "passage first" in wrong.failure


def test_keys_and_values_cost_no_passage_rows(tmp_path: Path) -> None:
    save_decoder(tmp_path, "llama", AFTER)
    joint = Model.open(tmp_path)
    cached = work(Model.split(joint, at=4, store="kv").spec, query=10, passage=100)
    states = work(Model.split(joint, at=2).spec, query=10, passage=100)
    assert cached.cross < states.cross < work(joint.spec, query=10, passage=100).whole()
    assert cached.query == 0
