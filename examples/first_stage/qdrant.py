"""Qdrant finds, `decoupled` ranks: `pip install qdrant-client`.

python examples/first_stage/qdrant.py "Who wrote Dracula?"
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams

import decoupled as dc

PASSAGES = [
    dc.Passage(id="dracula", text="Bram Stoker wrote Dracula, which appeared in 1897."),
    dc.Passage(id="frankenstein", text="Mary Shelley wrote Frankenstein."),
    dc.Passage(id="paris", text="Paris is the capital of France."),
]


def store(client: QdrantClient, engine: dc.Engine, passages: Sequence[dc.Passage]) -> None:
    """A collection of vectors whose payload says which passage each is of: Qdrant's own ids are numbers."""
    vectors = engine.embed([passage.text for passage in passages])
    width = VectorParams(size=vectors.shape[1], distance=Distance.DOT)
    client.create_collection("docs", vectors_config=width)
    both = zip(passages, vectors.tolist(), strict=True)
    points = [
        PointStruct(id=number, vector=vector, payload={"id": passage.id})
        for number, (passage, vector) in enumerate(both)
    ]
    client.upsert("docs", points)


def first_stage(
    client: QdrantClient, engine: dc.Engine
) -> Callable[[str, int], list[tuple[str, float]]]:
    """The nearest points, as pairs of a passage's id and its score."""

    def nearest(query: str, count: int) -> list[tuple[str, float]]:
        vector = engine.embed([query], side="query")[0].tolist()
        points = client.query_points("docs", query=vector, limit=count).points
        return [(point.payload["id"], point.score) for point in points]

    return nearest


def main(query: str, client: QdrantClient | None = None) -> dc.Hits:
    """Index the passages, store their vectors, search there, and rank here; in memory without a client."""
    path = Path(tempfile.mkdtemp()) / "docs.idx"
    with dc.Index.create(path) as index:
        index.add(PASSAGES)
    engine, client = dc.Engine(path), client or QdrantClient(":memory:")
    store(client, engine, PASSAGES)
    return engine.search(query, k=2, first_stage=first_stage(client, engine))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("query")
    for hit in main(parser.parse_args().query):
        print(f"{hit.score:.3f}  {hit.id}  {hit.text}")
