"""PostgreSQL with pgvector finds, `decoupled` ranks: `pip install "psycopg[binary]"`.

python examples/first_stage/postgres.py postgresql://localhost/docs "Who wrote Dracula?"
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import psycopg

import decoupled as dc

PASSAGES = [
    dc.Passage(id="dracula", text="Bram Stoker wrote Dracula, which appeared in 1897."),
    dc.Passage(id="frankenstein", text="Mary Shelley wrote Frankenstein."),
    dc.Passage(id="paris", text="Paris is the capital of France."),
]


def store(
    connection: psycopg.Connection, engine: dc.Engine, passages: Sequence[dc.Passage]
) -> None:
    """A table of ids and vectors; those of the model serve, and so would any other."""
    vectors = engine.embed([passage.text for passage in passages])
    connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    connection.execute(
        f"CREATE TABLE docs (id text PRIMARY KEY, embedding vector({vectors.shape[1]}))"
    )
    rows = [(passage.id, literal(one)) for passage, one in zip(passages, vectors, strict=True)]
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO docs VALUES (%s, %s)", rows)


def first_stage(
    connection: psycopg.Connection, engine: dc.Engine
) -> Callable[[str, int], list[tuple[str, float]]]:
    """The nearest rows by inner product, as pairs of id and score."""

    def nearest(query: str, count: int) -> list[tuple[str, float]]:
        (vector,) = engine.embed([query], side="query")
        # The operator <#> is the negative inner product.
        select = (
            "SELECT id, -(embedding <#> %(v)s) FROM docs ORDER BY embedding <#> %(v)s LIMIT %(n)s"
        )
        return connection.execute(select, {"v": literal(vector), "n": count}).fetchall()

    return nearest


def literal(vector: np.ndarray) -> str:
    """A vector as pgvector reads it."""
    return f"[{','.join(f'{value:.6g}' for value in vector)}]"


def main(address: str, query: str) -> dc.Hits:
    """Index the passages, store their vectors in the database, search there, and rank here."""
    path = Path(tempfile.mkdtemp()) / "docs.idx"
    with dc.Index.create(path) as index:
        index.add(PASSAGES)
    engine = dc.Engine(path)
    with psycopg.connect(address) as connection:
        store(connection, engine, PASSAGES)
        return engine.search(query, k=2, first_stage=first_stage(connection, engine))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address", help="a database, such as postgresql://localhost/docs")
    parser.add_argument("query")
    for hit in main(**vars(parser.parse_args())):
        print(f"{hit.score:.3f}  {hit.id}  {hit.text}")
