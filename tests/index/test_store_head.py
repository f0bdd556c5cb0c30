"""The head of a table: what was acknowledged is there as it was written, or opening it is refused."""

from __future__ import annotations

import json
import logging
import os

import pytest

from decoupled.errors import DecoupledError, IndexBusy
from decoupled.index.store.lance import LanceStore
from decoupled.model.tokens import Passage
from records import TOKEN_BYTES, WIDTH, record


@pytest.fixture
def path(tmp_path):
    return tmp_path / "test.idx"


@pytest.fixture
def store(path):
    with LanceStore.create(path, token_bytes=TOKEN_BYTES, width=WIDTH) as made:
        yield made


def newest_manifest(path):
    return min((path / "passages.lance" / "_versions").glob("*.manifest"))


def test_new_metadata_is_acknowledged_as_any_change(path, store):
    store.append([record("a")], part="0")
    (excerpt,) = store.snapshot.texts(store.snapshot.rows())
    store.relabel([Passage(id="a", text=excerpt.text, title=excerpt.title, meta={"year": 1990})])
    assert json.loads((path / "head.json").read_bytes())["version"] == store.snapshot.version


@pytest.mark.parametrize("keep", [0, 40])
def test_a_torn_version_that_nobody_was_told_of_is_set_aside(path, store, keep, caplog):
    store.append([record("a")], part="0")
    before = (path / "head.json").read_bytes()
    store.append([record("b")], part="1")
    (path / "head.json").write_bytes(
        before
    )  # the machine lost its power before the commit returned
    with pytest.raises(IndexBusy):
        # A live writer's files are not touched: it may just be busy.
        os.truncate(newest_manifest(path), keep)
        LanceStore.open(path)
    store.close()
    torn = newest_manifest(path)
    with caplog.at_level(logging.WARNING):
        reader = LanceStore.open(path)
    assert f"set aside the torn manifest {torn.name}" in caplog.text
    assert reader.snapshot.parts == {"0"}
    with LanceStore.open(path, write=True) as again:
        again.append([record("b")], part="1")
        assert again.snapshot.parts == {"0", "1"}
        assert again.snapshot.passages == 2


def test_a_version_that_its_writer_could_not_seal_is_there(path, store):
    store.append([record("a")], part="0")
    before = (path / "head.json").read_bytes()
    store.append([record("b")], part="1")
    (path / "head.json").write_bytes(before)
    store.close()
    assert LanceStore.open(path).snapshot.parts == {"0", "1"}
    with LanceStore.open(path, write=True) as again:
        again.delete(["a"])
    assert json.loads((path / "head.json").read_text())["rows"] == 3  # b and two markers


@pytest.mark.parametrize(
    ("how", "old"),
    [("torn", False), ("empty", False), ("gone", False), ("changed", False), ("torn", True)],
)
def test_no_store_goes_back_a_version_by_itself(path, store, how, old):
    """`old` is a table from before there were heads: what is torn is still not passed over."""
    store.append([record("a"), record("b")], part="0")
    reader = LanceStore.open(path)
    store.delete(["b"])
    store.close()
    manifest = newest_manifest(path)
    content = bytearray(manifest.read_bytes())
    content[len(content) // 2] ^= 1
    if old:
        (path / "head.json").unlink()
    match how:
        case "torn":
            os.truncate(manifest, 40)
        case "empty":
            os.truncate(manifest, 0)
        case "gone":
            manifest.unlink()
        case "changed":
            manifest.write_bytes(content)
    looks = [lambda: LanceStore.open(path), lambda: LanceStore.open(path, write=True)]
    if how != "gone":  # then a reader of the version before stays where it is
        looks.append(reader.refresh)
    for look in looks:
        with pytest.raises(
            DecoupledError, match=r"is damaged: .* run `decoupled check .* --repair`"
        ):
            look()
    assert LanceStore.exists(path)


def test_a_damaged_head_is_refused(path, store):
    store.append([record("a")], part="0")
    store.close()
    head = path / "head.json"
    head.write_bytes(head.read_bytes().replace(b'"rows": 2', b'"rows": 3'))
    with pytest.raises(DecoupledError, match=r"head\.json is damaged \(its checksum differs\)"):
        LanceStore.open(path)


@pytest.mark.parametrize("folder", ["data", "_deletions", "_indices"])
def test_a_changed_byte_of_the_table_is_refused(path, store, folder):
    store.append([record("a", "w1"), record("b", "w2")], part="0")
    store.optimise()
    reader = LanceStore.open(path)
    store.delete(["b"])
    store.close()
    for file in sorted((path / "passages.lance" / folder).rglob("*.*")):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    with pytest.raises(DecoupledError, match=f"{folder}/.* of its table is damaged or gone; run"):
        LanceStore.open(path)
    if folder == "_deletions":  # the others were compared before they changed
        with pytest.raises(
            DecoupledError, match=f"{folder}/.* of its table is damaged or gone; run"
        ):
            reader.refresh()


def test_a_table_from_before_there_were_heads_gets_one(path, store):
    store.append([record("a")], part="0")
    store.close()
    (path / "head.json").unlink()
    assert LanceStore.open(path).snapshot.passages == 1
    with LanceStore.open(path, write=True) as again:
        again.append([record("b")], part="1")
    assert json.loads((path / "head.json").read_text())["rows"] == 4
