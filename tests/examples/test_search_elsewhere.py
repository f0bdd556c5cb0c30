"""Searches elsewhere, as the examples show them: pgvector, Qdrant, and hits of OpenSearch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import decoupled as dc

EXAMPLES = Path(__file__).parents[2] / "examples" / "first_stage"
QUESTION = "Who wrote the novel Dracula?"


def example(name: str):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"first_stage_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def postgres(tmp_path_factory) -> Iterator[str]:
    """A database of PostgreSQL with pgvector, for as long as the tests run."""
    pgserver = pytest.importorskip("pgserver", reason="pgserver brings PostgreSQL with pgvector")
    pytest.importorskip("psycopg")
    # A socket's path is short: that of a test's folder may be too long.
    with pgserver.get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="delete") as server:
        yield server.get_uri()


def test_pgvector_finds_and_the_index_ranks(postgres):
    hits = example("postgres").main(postgres, QUESTION)
    assert hits[0].id == "dracula" and len(hits) == 2 and not hits.notes


def test_qdrant_finds_and_the_index_ranks(tmp_path):
    qdrant = pytest.importorskip("qdrant_client")
    client = qdrant.QdrantClient(path=str(tmp_path / "qdrant"))
    hits = example("qdrant").main(QUESTION, client)
    assert hits[0].id == "dracula" and len(hits) == 2 and not hits.notes
    assert client.count("docs").count == 3


def test_hits_of_opensearch_come_back_ranked(tmp_path):
    passages = [
        dc.Passage(id="paris", text="Paris is the capital of France."),
        dc.Passage(id="dracula", text="Bram Stoker wrote Dracula, which appeared in 1897."),
    ]
    with dc.Index.create(tmp_path / "i") as index:
        index.add(passages)
    # As the `_search` of OpenSearch 2 answers.
    found = [{"_index": "docs", "_id": i, "_score": s} for i, s in (("paris", 3.1), ("old", 2.0))]
    found.append({"_index": "docs", "_id": "dracula", "_score": None})  # of a sorted search
    total = {"value": 3, "relation": "eq"}
    response = {"took": 2, "timed_out": False, "hits": {"total": total, "hits": found}}
    done = subprocess.run(
        [sys.executable, EXAMPLES / "opensearch.py", tmp_path / "i", QUESTION],
        input=json.dumps(response),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["dracula", "paris"]
    assert done.stderr.endswith("ids that the index does not have: old\n")
