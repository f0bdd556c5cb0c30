"""Records held in this process, where Lance is not installed."""

from __future__ import annotations

import numpy as np
import pytest

from decoupled.errors import InputError, MissingRecord
from decoupled.index.store.memory import MemoryStore
from records import TOKEN_BYTES, WIDTH, record, same


def test_records_are_found_by_their_ids_and_never_change():
    store = MemoryStore.create("any", token_bytes=TOKEN_BYTES, width=WIDTH)
    assert len(store) == 0 and store.digests(["a"]) == [None] and store.delete(["a"]) == 0
    first, second = record("a", "one two"), record("a", "three", window=1)
    store.append([first, second, record("b", "four")], part="0")
    rows = store.locate(["b", "a"])
    assert [e.id for e in store.texts(rows)] == ["b", "a", "a"] and store.passages == 2
    assert same(store.texts(rows)[1], first)
    assert np.array_equal(store.states(rows)[2], second.states)
    assert store.digests(["a"]) == [first.digest]
    assert not len(store.lexical("one", 5)) and not len(store.dense(np.ones(WIDTH, "f4"), 5))
    with pytest.raises(MissingRecord, match="'c'"):
        store.locate(["c"])
    for change in (
        lambda: store.delete(["a"]),
        lambda: store.append([record("a", "other")], part="1"),
    ):
        with pytest.raises(InputError, match="'a' is held in memory, where none can change"):
            change()
    assert len(store) == 3
