"""Random histories of a store agree with a dictionary that went through the same."""

from __future__ import annotations

import uuid
from datetime import timedelta

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from decoupled.index.store import changes
from decoupled.index.store.state_cache import StateCache
from records import Kind, record

NOW = timedelta(0)

names = st.sampled_from([f"p{i}" for i in range(8)])
texts_of = st.lists(st.sampled_from([f"w{i}" for i in range(6)]), max_size=4).map(" ".join)
documents = st.dictionaries(names, st.lists(texts_of, min_size=1, max_size=3), max_size=4)


class History(RuleBasedStateMachine):
    kind: Kind

    @initialize()
    def start(self):
        self.model: dict[str, list[str]] = {}
        self.parts: set[str] = set()
        self.kind.path = self.kind.path.with_name(f"{uuid.uuid4().hex}.idx")
        self.store = self.kind.create()
        self.resident = StateCache(3000)

    @rule(new=documents)
    def append(self, new):
        records = [record(i, t, window=n) for i, ts in new.items() for n, t in enumerate(ts)]
        part = f"part{len(self.parts)}"
        assert self.store.append(records, part=part) == len(new.keys() & self.model.keys())
        self.model |= new
        self.parts.add(part)

    @rule(gone=st.lists(names, max_size=3))
    def delete(self, gone):
        assert self.store.delete(gone) == len(self.model.keys() & set(gone))
        for i in gone:
            self.model.pop(i, None)

    @rule()
    def optimise(self):
        self.store.optimise()

    @rule()
    def compact(self):
        self.store.compact(older_than=NOW)

    @rule()
    def reopen(self):
        self.store.close()
        self.store = self.kind.stores.open(self.kind.path, write=True)
        self.resident = StateCache(3000)

    @invariant()
    def agrees(self):
        view = self.store.snapshot
        assert view.parts == self.parts
        assert view.passages == len(self.model)
        expected = {(i, n): t for i, ts in self.model.items() for n, t in enumerate(ts)}
        assert len(view) == len(expected)
        assert {(e.id, e.window): e.text for e in view.scan()} == expected
        rows = view.locate(list(self.model))
        keys = [(i, n) for i, ts in self.model.items() for n in range(len(ts))]
        assert [(e.id, e.window) for e in view.texts(rows)] == keys
        assert sorted(view.rows().tolist()) == sorted(rows.tolist())
        # Kept from any earlier version, or read now: the bytes are those of this version.
        stored, kept = view.states(rows), self.resident.states(view, rows)
        assert np.array_equal(kept.lengths, stored.lengths)
        assert np.array_equal(kept.values, stored.values)
        assert self.resident.usage.bytes <= 3000
        for (i, n), stored in zip(keys, view.states(rows), strict=True):
            assert np.array_equal(stored, record(i, expected[i, n], window=n).states)
        for word in ("w0", "w5"):
            found = view.texts(view.lexical(word, 100).rows)
            holders = {key for key, t in expected.items() if word in t.split()}
            assert {(e.id, e.window) for e in found} == holders

    def teardown(self):
        self.store.close()


def test_any_history_agrees_with_a_dictionary(tmp_path, monkeypatch):
    # Small enough that a short history reaches what otherwise takes millions of records.
    monkeypatch.setattr(changes, "_MANY", 3)
    monkeypatch.setattr(changes, "_STEPS", (20, 8))
    monkeypatch.setattr(changes, "SMALL", 100)
    machine = type("History", (History,), {"kind": Kind("lance", tmp_path / "history.idx")})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=12,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
