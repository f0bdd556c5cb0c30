"""Everything that an index in a folder holds, record by record, for tests that compare two of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance

from decoupled.index.index import Index

COLUMNS = ["id", "window", "start", "digest", "title", "body", "meta", "offsets", "vector"]


def content(path: Path) -> dict[tuple[str, int], tuple[object, ...]]:
    """Everything that an index holds, by id and window."""
    table = lance.dataset(str(path / "passages.lance")).to_table(
        columns=COLUMNS, filter="window >= 0"
    )
    rows = table.to_pylist()
    found = {(r["id"], r["window"]): tuple(map(repr, r.values())) for r in rows}
    assert len(found) == len(rows), "a record is there twice"
    with Index.open(path) as index:
        assert index.store is not None
        view = index.store.snapshot
        counts: dict[str, int] = {}
        for ident, _ in found:
            counts[ident] = counts.get(ident, 0) + 1
        ids = sorted(counts)
        keys = [(i, w) for i in ids for w in range(counts[i])]
        stored = view.states(view.locate(ids))
        return {key: (*found[key], x.tobytes()) for key, x in zip(keys, stored, strict=True)}


def hits(path: Path, word: str) -> set[tuple[str, int]]:
    with Index.open(path) as index:
        assert index.store is not None
        view = index.store.snapshot
        return {(e.id, e.window) for e in view.texts(view.lexical(word, 10_000).rows)}


def same_as(reference: Path) -> Callable[[Path], None]:
    """A check that another index holds the same, finds the same, and has the same codec."""
    expected = content(reference)
    found = {word: hits(reference, word) for word in ("river", "castle")}

    def check(path: Path) -> None:
        assert content(path) == expected
        assert {word: hits(path, word) for word in found} == found
        codec = (path / "codec.safetensors").read_bytes()
        assert codec == (reference / "codec.safetensors").read_bytes()

    return check
