"""Stores and records for their tests; a record is the same for the same arguments."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from decoupled.index.record import Record
from decoupled.index.store.base import Store
from decoupled.index.store.lance import LanceStore

TOKEN_BYTES, WIDTH = 8, 8


def record(
    id: str,
    text: str = "",
    *,
    window: int = 0,
    title: str = "",
    meta: Mapping[str, Any] | None = None,
    tokens: int | None = None,
    vector: bool = True,
) -> Record:
    rng = np.random.default_rng(zlib.crc32(repr((id, text, window)).encode("utf-8", "replace")))
    count = tokens if tokens is not None else 2 + len(text.split())
    offsets = np.zeros((count, 2), np.int32)
    if count > 2:
        starts = np.cumsum(rng.integers(1, 9, count - 2))
        offsets[1:-1] = np.stack([starts, starts + rng.integers(0, 3, count - 2)], 1)
    return Record(
        id=id,
        window=window,
        start=100 * window,
        text=text,
        title=title,
        meta=meta or {},
        offsets=offsets,
        # As codes of few bits: those of many tokens are packed where they are stored.
        states=rng.integers(0, 4, (count, TOKEN_BYTES), np.uint8),
        vector=rng.standard_normal(WIDTH).astype(np.float32) if vector else None,
        digest=zlib.crc32(text.encode("utf-8", "replace")),
    )


def same(stored: Any, given: Record) -> bool:
    """Whether an excerpt is the one of a record."""
    return (
        (stored.id, stored.window, stored.start, stored.text, stored.title, dict(stored.meta))
        == (given.id, given.window, given.start, given.text, given.title, dict(given.meta))
    ) and np.array_equal(stored.offsets, given.offsets)


def ids(view: Any, ranking: Any) -> list[str]:
    """Ids of what was found, best first."""
    return [e.id for e in view.texts(ranking.rows)]


class Kind:
    """How to make a store of one kind, and a second one on the same records."""

    def __init__(self, name: str, path: Path | str = "") -> None:
        self.name, self.path = name, path

    @property
    def stores(self) -> type[Store]:
        return LanceStore

    def create(self):
        return self.stores.create(self.path, token_bytes=TOKEN_BYTES, width=WIDTH)

    def reader(self, store):
        return self.stores.open(self.path)
