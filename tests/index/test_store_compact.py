"""Compaction of the embedded store: what goes, what stays for those who still read it."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta
from unittest.mock import Mock

import pytest

from decoupled import Index, Passage
from decoupled.errors import DecoupledError
from decoupled.index.store import changes, local
from decoupled.index.store.lance import LanceStore
from records import TOKEN_BYTES, WIDTH, record

NOW = timedelta(0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "test.idx"


@pytest.fixture
def store(path):
    with LanceStore.create(path, token_bytes=TOKEN_BYTES, width=WIDTH) as made:
        yield made


def states(store, *ids):
    return [s.tolist() for s in store.snapshot.states(store.snapshot.locate(list(ids)))]


def test_dead_states_are_reclaimed_and_readers_keep_theirs(path, store):
    given = [record(f"p{i}", tokens=400) for i in range(40)]
    store.append(given[:20], part="0")
    store.append(given[20:], part="1")
    reader, late = LanceStore.open(path), LanceStore.open(path)
    (path / "states" / "orphan.bin").write_bytes(b"left by a killed writer")
    store.delete([f"p{i}" for i in range(32)])
    before = store._location.total()
    store.compact()
    assert len(list((path / "states").glob("*.bin"))) == 3
    assert len(states(reader, *(f"p{i}" for i in range(40)))) == 40
    assert states(store, "p35") == [given[35].states.tolist()]
    store.compact(older_than=NOW)
    assert len(list((path / "states").glob("*.bin"))) == 1
    assert store._location.total() < before / 3
    assert states(store, *(f"p{i}" for i in range(32, 40))) == [
        r.states.tolist() for r in given[32:]
    ]
    with pytest.raises(DecoupledError, match="refresh or open it again"):
        states(late, "p0")
    late.refresh()
    reader.refresh()
    assert not reader._location._files
    assert states(late, "p39") == [given[39].states.tolist()]


def test_a_version_goes_by_when_it_was_superseded():
    hours = [0, 50, 98.5, 99.5, 99.9]
    versions = [
        {"version": n, "timestamp": datetime.now() - timedelta(hours=100 - h)}
        for n, h in enumerate(hours)
    ]

    class Dataset:
        def versions(self):
            return versions

        def cleanup_old_versions(self, **asked):
            self.asked = asked

    dataset = Dataset()
    changes.remove_versions(dataset, timedelta(hours=1), alone=True)
    # Version 2 is 1.5 hours old, but was the newest until half an hour ago.
    assert dataset.asked == {"versions": [0, 1], "delete_unverified": True}


@pytest.mark.parametrize("superseded", ["2026-03-29T00:59:59Z", "2026-10-25T01:30:00Z"])
def test_a_version_is_no_older_when_clocks_change(monkeypatch, superseded):
    """The hour is skipped in spring and comes twice in autumn, when 01:30 UTC is the second 02:30."""
    moment = datetime.fromisoformat(superseded.replace("Z", "+00:00")).timestamp()
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        at = [datetime.fromtimestamp(m).replace(fold=0) for m in (moment - 9, moment)]
        dataset = Mock()
        dataset.versions.return_value = [
            {"version": n, "timestamp": t} for n, t in enumerate(at, 1)
        ]
        for passed, gone in ((1801, 0), (7300, 1)):
            monkeypatch.setattr(changes.time, "time", lambda passed=passed: moment + passed)
            changes.remove_versions(dataset, timedelta(hours=1), alone=True)
            assert dataset.cleanup_old_versions.call_count == gone
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_segment_grows_until_it_is_large(path, store, monkeypatch):
    def segments():
        return sorted(p.stat().st_size for p in (path / "states").glob("*.bin"))

    monkeypatch.setattr(local, "SEGMENT", 100)
    for i in range(4):
        store.append([record(f"p{i}", tokens=5)], part=str(i))
    assert segments() == [40, 120]
    names = [f"p{i}" for i in range(4)]
    assert states(store, *names) == [record(n, tokens=5).states.tolist() for n in names]
    # A segment whose records are all gone is not written to again, though it is not full.
    store.delete(["p3"])
    store.compact(older_than=NOW)
    assert segments() == [120]
    store.append([record("p4")], part="4")
    assert states(store, "p4") == [record("p4").states.tolist()]


def test_states_that_were_removed_before_their_commit_are_missed(path, store):
    staged = store.stage([record("a")], part="0")
    store.compact(older_than=NOW)
    with pytest.raises(DecoupledError, match="the states of part 0 are gone; stage it again"):
        store.commit([staged])
    assert len(store.snapshot) == 0


def test_half_written_files_go_when_a_writer_opens(path, store):
    store.close()
    half = path / "states" / "garbage.json.tmp"
    half.write_bytes(b"half")
    LanceStore.open(path)
    assert half.exists()
    LanceStore.open(path, write=True).close()
    assert not half.exists()


def test_compaction_frees_what_no_version_needs_and_says_what_waits(tmp_path):
    passages = [Passage(id=str(n), text=f"passage {n} of the river") for n in range(60)]
    with Index.create(tmp_path / "i") as index:
        for start in range(0, 60, 10):
            index.add(passages[start : start + 10])
        index.compact(older_than=NOW)
        fresh = index.compact()
        assert fresh.after <= fresh.before, "nothing was deleted, so nothing is rewritten"
        index.delete([str(n) for n in range(40)])
        kept = index.compact()
        assert kept.waiting > 0 and kept.to_json()["bytes_waiting"] == kept.waiting
        freed = index.compact(older_than=NOW)
        assert freed.after < fresh.after and freed.after < freed.before and freed.waiting == 0
        assert len(index) == 20 and "MB freed" in next(freed.lines())
    shown = list(replace(kept, waiting=2_000_000).lines())
    assert "2.0 MB are kept for an hour" in shown[1] and "--now" in shown[1]
