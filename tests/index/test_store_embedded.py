"""The embedded store alone: its files, its lock, what it survives, and what it says when it cannot."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

from decoupled.errors import DecoupledError, IndexBusy, InputError
from decoupled.index.store import changes, lance, local, snapshot
from decoupled.index.store.lance import LanceStore
from decoupled.index.store.vectors import Vectors
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


def newest_manifest(path):
    return min((path / "passages.lance" / "_versions").glob("*.manifest"))


# Opening ------------------------------------------------------------------------------------------


def test_folders_that_hold_no_index_are_named(tmp_path, store, path):
    with pytest.raises(InputError, match=f"{tmp_path}/none holds no index; make one with"):
        LanceStore.open(tmp_path / "none")
    with pytest.raises(InputError, match="holds no index"):
        LanceStore.open(tmp_path, write=True)
    assert not (tmp_path / "none").exists()
    store.close()
    with pytest.raises(InputError, match="already holds an index; open it, or choose another"):
        LanceStore.create(path, token_bytes=8)
    LanceStore.open(f"file://{path}", write=True).close()


def test_a_store_whose_making_was_cut_off_can_be_made_again(path):
    (path / "passages.lance" / "data").mkdir(parents=True)
    (path / "passages.lance" / "data" / "left.lance").write_bytes(b"by a killed process")
    assert not LanceStore.exists(path)
    with LanceStore.create(path, token_bytes=TOKEN_BYTES) as store:
        assert LanceStore.exists(path)
        assert store.append([record("a", vector=False)], part="0") == 0


def test_a_table_of_another_format_is_refused(path, store, monkeypatch):
    monkeypatch.setattr(lance, "READ", ("1", "3"))
    with pytest.raises(InputError, match="table format 2, this version reads 1 and 3; index again"):
        LanceStore.open(path)


def test_a_second_writer_in_another_process_is_refused(path, store):
    script = (
        "import sys; from decoupled.index.store.lance import LanceStore\n"
        "try: LanceStore.open(sys.argv[1], write=True)\n"
        "except Exception as e: print(type(e).__name__, e)\n"
        "print(len(LanceStore.open(sys.argv[1]).snapshot))"
    )
    store.append([record("a")], part="0")
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(path)]
    said = subprocess.run(command, env=paths, capture_output=True, text=True, check=True).stdout
    assert said == (
        f"IndexBusy {path} is being written by process {os.getpid()}; wait for it or stop it "
        "(searching needs no lock)\n1\n"
    )
    store.close()
    with pytest.raises(IndexBusy, match="opened for reading"):
        store.append([], part="1")
    assert LanceStore.open(path, write=True).append([], part="1") == 0


def test_damaged_search_indexes_of_an_older_table_are_rebuilt(path, store, caplog):
    store.append([record("a", "w1"), record("b", "w1 w2")], part="0")
    store.optimise()
    store.close()
    (path / "head.json").unlink()
    for file in (path / "passages.lance" / "_indices").rglob("*.lance"):
        os.truncate(file, 0)
    with caplog.at_level(logging.WARNING), LanceStore.open(path, write=True) as again:
        assert "the index on body is damaged and will be rebuilt" in caplog.text
        assert len(again.snapshot.lexical("w1", 5)) == 2
        again.optimise()
        assert len(again.snapshot.lexical("w2", 5)) == 1


# Failing ------------------------------------------------------------------------------------------


def test_a_full_disk_loses_nothing(path, store, monkeypatch):
    store.append([record("a", "w1")], part="0")
    full = OSError(errno.ENOSPC, "No space left on device")

    def no_space(*args, **kwargs):
        raise full

    for place, name in ((local.os, "fsync"), (changes, "write_rows"), (changes, "_make_lacking")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, no_space)
            with pytest.raises(
                DecoupledError, match=r"disk of .* is full: .* was not written, and"
            ):
                store.append([record("b", "w1"), record("a", "w2")], part="1")
                store.optimise()
    store.append([record("c")], part="2")
    store.compact(older_than=NOW)
    for each in (store, LanceStore.open(path)):
        assert states(each, "c") == [record("c").states.tolist()]
        assert each.snapshot.passages in (2, 3)
    assert not list((path / "states").glob("*.tmp"))


def test_what_is_written_is_synced_whatever_the_clock_says(path, store, monkeypatch):
    synced = set()

    def noted(descriptor, sync=os.fsync):
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(local.os, "fsync", noted)
    monkeypatch.setattr(time, "time", lambda: 4e9)  # so what is written is of long ago
    before = {file.stat().st_ino for file in path.rglob("*")}
    store.append([record("a", "w1"), record("b", "w2")], part="0")
    store.optimise()
    store.delete(["a"])
    store.compact()
    table = (path / "passages.lance").rglob("*")
    hint = "latest_version_hint.json"  # Lance manages without
    written = [f for f in table if f.stat().st_ino not in before and f.name != hint]
    assert len(written) > 5
    assert not [f for f in written if f.stat().st_ino not in synced]


def test_a_full_disk_is_not_filled_further(path, store, monkeypatch):
    store.append([record("a")], part="0")
    before = store._location.total()

    def no_space(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(local.os, "fsync", no_space)
        with pytest.raises(DecoupledError, match="part 1 was not written"):
            store.append([record("b", tokens=5000)], part="1")
    assert store._location.total() == before
    assert store.append([record("b")], part="1") == 0
    assert states(store, "a", "b") == [record(i).states.tolist() for i in "ab"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(path, store):
    store.close()
    (path / "write.lock").unlink()
    path.chmod(0o500)
    with pytest.raises(
        DecoupledError, match=r"cannot be written .*; check the path and its permissions"
    ):
        LanceStore.open(path, write=True)
    assert len(LanceStore.open(path).snapshot) == 0
    path.chmod(0o700)


def test_another_writers_commit_is_noticed(path, store, monkeypatch):
    store.append([record("a")], part="0")
    stale = store.snapshot
    store.append([record("a", "new")], part="1")
    rows = stale.locate(["a"])
    with pytest.raises(IndexBusy, match="was changed by another writer meanwhile"):
        changes.replace_rows(stale._at, store._location, rows)


def test_readers_say_when_the_index_was_deleted(path, store):
    store.append([record("a", "w1"), record("b", "w1")], part="0")
    store.close()
    reader, other = LanceStore.open(path), LanceStore.open(path)
    rows = reader.snapshot.locate(["a"])
    other.snapshot.states(other.snapshot.locate(["a"]))
    shutil.rmtree(path)
    with pytest.raises(DecoupledError, match="is gone: the index was compacted long after"):
        reader.snapshot.states(rows)
    with pytest.raises(DecoupledError, match="is gone"):
        reader.snapshot.texts(rows)
    with pytest.raises(InputError, match="holds no index"):
        other.refresh()


def test_a_short_segment_is_named(path, store):
    store.append([record("a", "w " * 50)], part="0")
    (segment,) = (path / "states").glob("*.bin")
    os.truncate(segment, 10)
    with pytest.raises(DecoupledError, match=f"segment {segment.stem} of .* is damaged: restore"):
        store.snapshot.states(store.snapshot.locate(["a"]))


def flip(file, at=None):
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 4
    file.write_bytes(content)


def test_a_changed_byte_of_states_is_an_error_until_they_are_written_again(path, store):
    store.append([record(i, "w " * 20) for i in "abc"], part="0")
    (segment,) = (path / "states").glob("*.bin")
    flip(segment)
    wrong = r"states of 1 of 3 records of .* are damaged, first those of 'b'; delete these passages"
    with pytest.raises(DecoupledError, match=wrong):
        states(store, *"abc")
    assert states(store, "a", "c") == [record(i, "w " * 20).states.tolist() for i in "ac"]
    store.append([record("d")], part="1")
    store.delete(["a"])
    store.compact(older_than=NOW)  # it moves what is there, and what is wrong stays known
    with pytest.raises(DecoupledError, match="states of 1 of 1 records of"):
        states(store, "b")
    store.append([record("b", "w " * 20)], part="2")
    assert states(store, "b") == [record("b", "w " * 20).states.tolist()]


def test_a_table_without_checksums_is_read_as_before(path, monkeypatch):
    real = lance.schema_of

    def older(**widths):
        schema, later = real(**widths), ("states_crc32", "excerpt_crc32", "size")
        return pa.schema([f for f in schema if f.name not in later], metadata=schema.metadata)

    monkeypatch.setattr(lance, "schema_of", older)
    with LanceStore.create(path, token_bytes=TOKEN_BYTES, width=WIDTH) as store:
        store.append([record(i, "w " * 60, meta={"n": 1}) for i in "abc"], part="0")
        store.delete(["a"])
        store.compact(older_than=NOW)
        assert states(store, "b") == [record("b", "w " * 60).states.tolist()]
        assert {e.id for e in store.snapshot.scan()} == {"b", "c"}


def test_states_are_stored_without_what_they_repeat(path, store):
    given = [record(i, "w " * n) for i, n in (("a", 90), ("b", 0), ("c", 200), ("d", 120))]
    store.append(given, part="0")
    store.delete(["d"])
    store.compact(older_than=NOW)
    sizes = [file.stat().st_size for file in (path / "states").glob("*.bin")]
    assert sum(sizes) < 0.5 * sum(r.states.nbytes for r in given[:3])
    assert states(store, *"cab") == [given[n].states.tolist() for n in (2, 0, 1)]
    assert len(states(store, "b")[0]) == 2, "as it is: too short to shrink"


def test_what_lance_cannot_read_is_said_in_our_words(path, store):
    store.append([record("a", "w1")], part="0")
    store.optimise()
    for file in (path / "passages.lance" / "data").glob("*.lance"):
        file.write_bytes(bytes(len(file.read_bytes())))
    (path / "head.json").unlink()  # which would have told at once
    view = LanceStore.open(path).snapshot
    with pytest.raises(DecoupledError, match=r"cannot be read \(.*restore it from a copy"):
        view.locate(["a"])


def test_rows_of_another_snapshot_are_refused(store):
    store.append([record("a"), record("b")], part="0")
    rows = store.snapshot.locate(["a"])
    store.delete(["a"])
    with pytest.raises(DecoupledError, match="1 of 1 rows are not in version"):
        store.snapshot.texts(rows)


def test_two_ids_with_one_key_are_refused(store, monkeypatch):
    def one_key(ids):
        return np.array([7 for _ in ids], np.uint64)

    monkeypatch.setattr("decoupled.index.record.keys_of", one_key)
    monkeypatch.setattr(lance, "keys_of", one_key)
    store.append([record("a")], part="0")
    with pytest.raises(
        InputError, match="the id 'b' has the same key as 'a', which is there; rename"
    ):
        store.append([record("b")], part="1")
    assert store.delete(["b"]) == 0
    assert store.append([record("a", "w")], part="1") == 1


# Writing ------------------------------------------------------------------------------------------


def test_parts_staged_elsewhere_are_committed_together(path, store):
    workers = [LanceStore.open(path) for _ in range(2)]
    staged = [
        w.stage([record(f"p{n}", "w1"), record(f"q{n}")], part=str(n))
        for n, w in enumerate(workers)
    ]
    before = store.snapshot.version
    assert len(store.snapshot) == 0
    assert store.commit(staged) == 0
    assert store.snapshot.version == before + 1
    assert (len(store.snapshot), store.snapshot.parts) == (4, {"0", "1"})
    # The same id in two parts: the later one stays.
    again = [workers[0].stage([record("p0", text)], part=text) for text in ("x", "y")]
    assert store.commit(again) == 2
    assert [e.text for e in store.snapshot.texts(store.snapshot.locate(["p0"]))] == ["y"]
    with pytest.raises(InputError, match="a part needs a name"):
        store.append([record("a")], part="")
    with pytest.raises(InputError, match=r"holds a lone surrogate \('\\ud800'\)"):
        store.append([record("a", "x \ud800", tokens=2)], part="z")


def test_indexes_are_brought_up_to_date_in_small_steps(store):
    pieces = []
    for n in range(10):
        store.append([record(f"p{n}", f"w{n} w")], part=str(n))
        store.optimise()
        ((name, sizes, uncovered),) = changes._coverage(store.snapshot._at.dataset)
        assert (name, uncovered) == ("body", 0)
        assert sum(sizes) == 2 * (n + 1)
        pieces.append(len(sizes))
    # Some appends get a piece of their own, and pieces are joined before there are many.
    assert set(pieces) == {1, 2}
    version = store.snapshot.version
    store.optimise()
    assert store.snapshot.version == version
    assert len(store.snapshot.lexical("w", 50)) == 10


def test_many_fragments_are_merged_as_they_come(store, monkeypatch):
    monkeypatch.setattr(changes, "_MANY", 4)
    monkeypatch.setattr(changes, "_STEPS", (40, 6))
    for n in range(14):
        store.append([record(f"p{n}", f"w{n} w"), record("same", f"v{n}")], part=str(n))
        store.optimise()
        assert len(store.snapshot._at.fragments) <= 6
    view_ = store.snapshot
    assert (view_.passages, len(view_.parts), len(view_.lexical("w", 99))) == (15, 14, 14)
    assert len(view_.lexical("v12", 9)) == 0
    assert states(store, "p3", "same") == [
        record("p3", "w3 w").states.tolist(),
        record("same", "v13").states.tolist(),
    ]


def test_many_rows_do_not_move_for_a_few(store, monkeypatch):
    monkeypatch.setattr(changes, "_MANY", 4)
    monkeypatch.setattr(changes, "_STEPS", (1000, 20))
    for n in range(8):
        store.append([record(f"p{n}-{i}") for i in range(30)], part=str(n))
    store.optimise()
    (whole,) = store.snapshot._at.fragments
    for n in range(4):
        store.append([record(f"q{n}")], part=f"q{n}")
        store.optimise()
    assert whole in store.snapshot._at.fragments and len(store.snapshot._at.fragments) == 2


def test_many_records_are_searched_through_indexes(store, monkeypatch):
    monkeypatch.setattr(snapshot, "LARGE", 300)
    monkeypatch.setattr(changes, "LARGE", 300)
    monkeypatch.setattr(snapshot, "_FEW", 10)
    given = [record(f"p{i}", "w1", meta={"lang": "de" if i % 3 else "en"}) for i in range(600)]
    store.append(given[:500], part="0")
    store.optimise()
    names = {name for name, _, _ in changes._coverage(store.snapshot._at.dataset)}
    assert names == {"body", "tags", "vector"}
    store.append(given[500:], part="1")
    store.delete(["p1"])
    query = np.linspace(-1, 2, WIDTH, dtype=np.float32)
    for _ in range(2):
        for where in (None, {"lang": "en"}, {"lang": "de"}):
            live = [
                r for r in given if r.id != "p1" and (not where or r.meta["lang"] == where["lang"])
            ]
            scores = {r.id: float(r.vector @ query) for r in live}
            best = sorted(scores, key=lambda i: -scores[i])[:20]
            found = store.snapshot.dense(query, 20, where)
            names = [e.id for e in store.snapshot.texts(found.rows)]
            assert len(set(names) & set(best)) >= 18
            assert np.allclose(found.scores, [scores[i] for i in names], atol=1e-2)
            assert len(store.snapshot.lexical("w1", 1000, where)) == len(live)
        store.compact(older_than=NOW)


def test_vectors_in_memory_keep_products_and_their_order():
    x = np.random.default_rng(0).standard_normal((2500, 64)).astype(np.float32)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    unit[7] = 0
    unit[11] *= 1000  # a vector of any length has a step of its own
    parts = [
        (np.arange(2000), unit[:2000].astype(np.float16)),
        (np.arange(2000, 2500), unit[2000:]),
    ]
    held = Vectors.of(parts, 64)
    assert held.codes.dtype == np.int8 and held.rows.tolist() == list(range(2500))
    exact, found = unit @ unit[3], held.dot(unit[3])
    off = np.abs(found - exact)
    assert np.delete(off, 11).max() < 5e-3 and off[11] < 5 and found[7] == 0
    assert len(set(np.argsort(-exact)[:100]) & set(np.argsort(-found)[:100])) >= 97
    some = held.at(np.array([-1, 3, 2100, 2499, 9999]))
    assert some.rows.tolist() == [3, 2100, 2499]
    assert some.dot(unit[3]).tolist() == pytest.approx(found[some.rows].tolist())
    assert (
        len(Vectors.of([], 64).dot(unit[3])) == len(Vectors.of([], 64).at(np.arange(3)).rows) == 0
    )


# Reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", ["nothing", "nowait", "fadvise", "preadv"])
def test_reading_where_the_system_offers_less(store, absent, monkeypatch):
    given = [record(f"p{i}", "w " * i) for i in range(30)]
    store.append(given, part="0")
    if absent in ("nowait", "preadv"):
        monkeypatch.setattr(local, "_NOWAIT", 0)
    if absent == "fadvise":
        monkeypatch.delattr(os, "posix_fadvise")
    if absent == "preadv":
        monkeypatch.delattr(os, "preadv")
    order = [f"p{i}" for i in range(29, -1, -1)]
    assert states(store, *order) == [r.states.tolist() for r in reversed(given)]


def test_more_segments_than_open_files(store, monkeypatch):
    monkeypatch.setattr(local, "_OPEN_FILES", 2)
    monkeypatch.setattr(local, "SEGMENT", 1)
    for i in range(6):
        store.append([record(f"p{i}")], part=str(i))
    names = [f"p{i}" for i in range(6)]
    for _ in range(2):
        assert states(store, *names) == [record(n).states.tolist() for n in names]
    assert len(store._location._files) == 2


def test_threads_read_while_a_writer_works(path, store):
    store.append([record(f"p{i}", "w1") for i in range(50)], part="0")
    reader, failures, stop = LanceStore.open(path), [], threading.Event()

    def read():
        rng = np.random.default_rng()
        while not stop.is_set():
            try:
                now = reader.refresh()
                rows = now.lexical("w1", 50).rows
                picked = rows[rng.permutation(len(rows))[:10]]
                for excerpt, stored in zip(now.texts(picked), now.states(picked), strict=True):
                    assert np.array_equal(stored, record(excerpt.id, excerpt.text).states)
                assert now.passages == len(set(now.locate([e.id for e in now.scan()]).tolist()))
            except Exception as error:  # the main thread reports it
                failures.append(error)
                return

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(12):
        store.append([record(f"p{i}", f"w1 v{n}") for i in range(n, n + 20)], part=f"again {n}")
        store.delete([f"p{n}"])
        if n % 4 == 3:
            store.optimise()
            store.compact()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_writing_to_a_large_index_is_silent(path):
    script = f"""
from records import TOKEN_BYTES, WIDTH, record
from decoupled.index.store import changes
from decoupled.index.store.lance import LanceStore
changes.LARGE = 300
store = LanceStore.create({str(path)!r}, token_bytes=TOKEN_BYTES, width=WIDTH)
for part, count in enumerate((600, 1)):
    store.append([record(f"p{{part}}-{{i}}", "w1") for i in range(count)], part=str(part))
    store.optimise()
"""
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script], env=paths, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
