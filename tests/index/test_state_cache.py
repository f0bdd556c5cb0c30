"""States in memory: the same bytes, fewer reads, never more than the budget."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from decoupled.errors import InputError
from decoupled.index.index import Index
from decoupled.index.store.lance import LanceStore
from decoupled.index.store.state_cache import OVERHEAD, StateCache, parse_bytes
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine
from records import TOKEN_BYTES, record

TOKENS = 50
EACH = TOKENS * TOKEN_BYTES + OVERHEAD


@pytest.fixture
def store(tmp_path):
    with LanceStore.create(tmp_path / "s", token_bytes=TOKEN_BYTES, width=8) as made:
        made.append([record(f"p{n}", "word", tokens=TOKENS) for n in range(10)], part="0")
        yield made


def rows_of(store, *numbers):
    return store.snapshot.locate([f"p{n}" for n in numbers])


def test_what_was_read_is_not_read_again(store, monkeypatch):
    resident, read = StateCache("1MB"), []
    view = store.snapshot
    states = view.states
    monkeypatch.setattr(view, "states", lambda rows: read.extend(rows.tolist()) or states(rows))
    for wanted in ((1, 2, 3), (3, 2), (2, 4, 2)):
        rows = rows_of(store, *wanted)
        got, expected = resident.states(view, rows), states(rows)
        assert np.array_equal(got.values, expected.values)
        assert np.array_equal(got.lengths, expected.lengths)
    assert read == rows_of(store, 1, 2, 3, 4).tolist()
    usage = resident.usage
    assert (usage.records, usage.hits, usage.misses, usage.evicted) == (4, 4, 4, 0)
    assert usage.bytes == 4 * EACH and usage.to_json()["hit_rate"] == 0.5


def test_the_least_recently_used_goes_first(store):
    resident, view = StateCache(3 * EACH), store.snapshot
    resident.states(view, rows_of(store, 0, 1, 2))
    resident.states(view, rows_of(store, 0))
    resident.states(view, rows_of(store, 3))
    before = resident.usage
    assert (before.records, before.evicted) == (3, 1) and before.bytes <= before.budget
    resident.states(view, rows_of(store, 0, 2, 3))
    assert resident.usage.misses == before.misses, "1 was the oldest, and is the one that went"
    resident.states(view, rows_of(store, 1))
    assert resident.usage.misses == before.misses + 1


def test_a_record_larger_than_the_budget_is_read_each_time(store):
    resident = StateCache(EACH - 1)
    for _ in range(2):
        got = resident.states(store.snapshot, rows_of(store, 5))
        assert np.array_equal(got.values, store.snapshot.states(rows_of(store, 5)).values)
    assert resident.usage.records == 0 and resident.usage.misses == 2


def test_compaction_and_updates_change_no_byte(store):
    resident = StateCache("1MB")
    resident.warm(store.snapshot)
    assert resident.usage.records == 10
    store.append([record("p1", "other", tokens=TOKENS)], part="1")
    store.delete([f"p{n}" for n in range(2, 9)])
    store.compact(older_than=timedelta(0))
    rows = rows_of(store, 0, 1, 9)
    got = resident.states(store.snapshot, rows)
    assert np.array_equal(got.values, store.snapshot.states(rows).values)


def test_warming_stops_when_the_budget_is_full(store):
    seen = []
    small = StateCache(4 * EACH)
    assert small.warm(store.snapshot, seen.append).records == 4
    assert seen[-1].bytes <= small.budget
    whole = StateCache("1MB")
    whole.warm(store.snapshot)
    assert whole.usage.records == 10 and whole.warm(store.snapshot).records == 10
    whole.states(store.snapshot, rows_of(store, *range(10)))
    assert whole.usage.hits == 10 and whole.usage.misses == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2 * 10**9), ("512 MiB", 512 * 2**20), ("1.5kb", 1500), ("700", 700), (9, 9)],
)
def test_sizes_as_people_write_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["much", "2 gold", "-1GB", "0", 0])
def test_sizes_that_are_none(text):
    with pytest.raises(InputError, match="memory is"):
        parse_bytes(text)


class Distant:
    """A runtime with memory of its own, to which only its numbers can be sent."""

    class Block:
        def __init__(self, states, which):
            self.states, self.which, self.block = states, which, id(states)
            self.lengths = states.lengths[which]

        def __len__(self):
            return len(self.which)

        def select(self, which):
            return Distant.Block(self.states, self.which[np.asarray(which)])

    def __init__(self, runtime):
        self._runtime, self.read = runtime, 0

    def __getattr__(self, name):
        return getattr(self._runtime, name)

    def keep(self, encoded):
        return Distant.Block(encoded, np.arange(len(encoded)))

    def cross(self, query, passages, heads, *, last=None):
        if isinstance(passages, Distant.Block):
            self.read += len(passages)
            passages = passages.states.select(passages.which)
        return self._runtime.cross(query, passages, heads, last=last)


class DistantEngine(Engine):
    @property
    def runtime(self):
        self.distant = getattr(self, "distant", None) or Distant(super().runtime)
        return self.distant


@pytest.mark.parametrize("cascade", [None, 0.3])
def test_a_runtime_with_its_own_memory_reads_from_there(model, tmp_path, cascade):
    split = Model.split(model("bert", "rank"), at=1)
    passages = [Passage(id=f"p{n}", text=f"the river by town {n}") for n in range(30)]
    with Index.create(tmp_path / "i", split, codec="int8") as index:
        index.add(passages)
        plain = Engine(index, cascade=cascade)
        distant = DistantEngine(index, cascade=cascade, memory="1MB")
        distant.warm()

        def same(*asked, **given):
            ours = [(h.id, h.score) for h in distant.rerank(*asked, raw=True, **given)]
            assert ours == [(h.id, h.score) for h in plain.rerank(*asked, raw=True, **given)]

        ids = [f"p{n}" for n in (9, 3, 27, 3, *range(10, 20))]
        same("river", ids=ids, k=5)
        assert distant.distant.read == (14 if cascade is None else distant.distant.read) > 0
        before = distant.distant.read
        same("river", ids=["p1"], texts=["a river", "a town"])
        index.add([Passage(id="p3", text="another river")])
        same("river", ids=ids, k=5)
        assert distant.distant.read == before, "a text and a new record are read from here"
        distant.warm()
        same("river", ids=ids, k=5)
        assert distant.distant.read > before


def test_an_engine_with_memory_says_the_same(model, tmp_path):
    split = Model.split(model("bert", "rank"), at=1)
    passages = [Passage(id=f"p{n}", text=f"the river by town {n}") for n in range(12)]
    with Index.create(tmp_path / "i", split, codec="int8") as index:
        index.add(passages)
        plain, kept = Engine(index), Engine(index, memory="1MB")
        assert plain.memory is None and plain.warm() is None
        for _ in range(2):
            ours = [(h.id, h.score) for h in kept.search("river town 3", raw=True)]
            assert ours == [(h.id, h.score) for h in plain.search("river town 3", raw=True)]
        assert kept.memory.hits == kept.memory.misses == 12
        index.add([Passage(id="p3", text="another river")])
        index.delete(["p4"])
        fresh = kept.rerank("river", ids=["p3", "p5"], raw=True)
        assert [(h.id, h.score) for h in fresh] == [
            (h.id, h.score) for h in plain.rerank("river", ids=["p3", "p5"], raw=True)
        ]
        assert kept.warm().records == 13  # the old p3 and the deleted p4 stay until room is needed
