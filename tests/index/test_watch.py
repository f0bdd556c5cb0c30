"""An index that follows a folder: it equals a fresh build, and nothing is encoded twice."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import numpy as np
import pytest

import decoupled as dc
from decoupled.errors import InputError
from decoupled.index import index as index_module
from decoupled.index.watch import Watch
from served import tiny_split

WORDS = ["moon", "town", "river", "novel", "count", "castle", "winter", "letter", "ship", "garden"]


def page(number: int, version: int = 0) -> str:
    draw = random.Random(f"{number} {version}")
    parts = [f"## Part {n}\n\n" + " ".join(draw.choice(WORDS) for _ in range(60)) for n in range(3)]
    # One part is the same in every version: it must not be encoded again.
    same = f"## Always\n\nPage {number} is about the {WORDS[number % 10]}. " + "It stays. " * 20
    return f"# Page {number}\n\n" + "\n\n".join([*parts, same])


@pytest.fixture
def encoded(monkeypatch) -> Counter:
    """How often each content (title and text) was encoded."""
    counts: Counter = Counter()
    encode = index_module.encode_passages

    def counting(runtime, codec, passages, **how):
        counts.update((p.id, p.title, p.text) for p in passages)
        return encode(runtime, codec, passages, **how)

    monkeypatch.setattr(index_module, "encode_passages", counting)
    return counts


@pytest.fixture
def split(model):
    return tiny_split(model)


class Rows(dict):
    """All that is stored, by id and window; states are equal but for the rounding of other batches."""

    def __eq__(self, other: object) -> bool:
        same = self.keys() == other.keys() and all(self[k][0] == other[k][0] for k in self)
        return same and all(np.allclose(self[k][1], other[k][1], atol=0.02) for k in self)

    __hash__ = None


def rows(index: dc.Index) -> Rows:
    snapshot = index.refresh()
    states = index.codec.decode(snapshot.states(snapshot.rows()))
    excerpts = snapshot.texts(snapshot.rows())
    return Rows(
        {
            (e.id, e.window): ((e.title, e.text, dict(e.meta)), states[n])
            for n, e in enumerate(excerpts)
        }
    )


def fresh_rows(folder, split, path) -> Rows:
    with dc.Index.create(path, split, codec="fp16") as index:
        index.add(dc.read_passages(folder, tokenizer=index.runtime.tokenizer))
        return rows(index)


def opened(path, split) -> dc.Index:
    dc.Index.create(path, split, codec="fp16").close()
    index = dc.Index.open(path)
    assert index.runtime is not None  # loaded once, and handed on to every writer
    return index


def test_a_step_reads_what_changed_and_encodes_what_is_new(split, tmp_path, encoded):
    folder = tmp_path / "docs"
    folder.mkdir()
    for n in range(4):
        (folder / f"{n}.md").write_text(page(n))
    (folder / "rows.jsonl").write_text(
        '{"id": "a", "text": "the moon"}\n{"id": "b", "text": "a town"}\n'
    )
    index = opened(tmp_path / "docs.idx", split)
    watch = Watch(index, [folder])
    first = watch.step()
    assert first.files == 5 and first.removed == 0 and first.changed
    assert not watch.step().changed and watch.step().files == 0
    (folder / "1.md").write_text(page(1, version=1))
    (folder / "2.md").unlink()
    (folder / "rows.jsonl").write_text(
        '{"id": "b", "text": "a town"}\n{"id": "c", "text": "a ship"}\n'
    )
    before = encoded.total()
    step = watch.step()
    assert step.files == 2 and step.removed >= 2
    assert encoded.total() - before == step.added.added < 8
    assert rows(index) == fresh_rows(folder, split, tmp_path / "fresh.idx")
    # A new process knows nothing of the files, and encodes nothing all the same.
    (folder / "3.md").unlink()
    before = encoded.total()
    Watch(dc.Index.open(tmp_path / "docs.idx"), [folder]).step()
    assert encoded.total() == before
    assert rows(index) == fresh_rows(folder, split, tmp_path / "fresh2.idx")


def test_a_folder_that_is_gone_or_empty_removes_nothing(split, tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text(page(1))
    index = opened(tmp_path / "docs.idx", split)
    watch = Watch(index, [folder])
    watch.step()
    folder.rename(tmp_path / "away")
    with pytest.raises(InputError, match="does not exist"):
        watch.step()
    folder.mkdir()
    with pytest.raises(InputError, match="no files are left"):
        watch.step()
    assert index.refresh().passages > 0


def test_a_file_that_cannot_be_read_keeps_its_passages(split, tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "rows.jsonl").write_text('{"id": "a", "text": "the moon"}\n')
    (folder / "b.md").write_text(page(1))
    index = opened(tmp_path / "docs.idx", split)
    problems = []
    watch = Watch(index, [folder], report=problems.append)
    watch.step()
    (folder / "rows.jsonl").write_text('{"id": \n')
    watch.step()
    assert problems and "a" in {e.id for e in index.refresh().scan()}


def test_two_that_follow_one_folder_encode_everything_once(split, tmp_path, encoded):
    folder = tmp_path / "docs"
    folder.mkdir()
    for n in range(6):
        (folder / f"{n}.md").write_text(page(n))
    watches = [Watch(opened(tmp_path / "docs.idx", split), [folder])]
    watches.append(Watch(dc.Index.open(tmp_path / "docs.idx"), [folder]))
    follow_edits(watches, lambda: [(folder / f"{n}.md").write_text(page(n, 1)) for n in range(6)])
    assert max(encoded.values()) == 1
    assert rows(watches[0].index) == fresh_rows(folder, split, tmp_path / "fresh.idx")


def follow_edits(watches, edits, *, quiet: float = 2.5) -> None:
    """Let all follow while the edits are made, and until nothing happened for a while."""
    stop, last = threading.Event(), [time.monotonic()]

    def stepped(_: object) -> None:
        last[0] = time.monotonic()

    threads = [threading.Thread(target=w.follow, args=(stop, stepped)) for w in watches]
    for thread in threads:
        thread.start()
    try:
        edits()
        last[0] = time.monotonic()
        while time.monotonic() - last[0] < quiet:
            time.sleep(0.05)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.slow
def test_two_hundred_edits_under_load_leave_a_fresh_build(split, tmp_path, encoded):
    folder = tmp_path / "docs"
    folder.mkdir()
    for n in range(60):
        (folder / f"{n}.md").write_text(page(n))
    index = opened(tmp_path / "docs.idx", split)
    watch, draw, failures = Watch(index, [folder]), random.Random(0), []
    engine, stop = dc.Engine(tmp_path / "docs.idx"), threading.Event()

    def load() -> None:
        while not stop.is_set():
            try:
                engine.search("the moon over the town", k=3)
            except dc.DecoupledError as error:
                failures.append(error)

    def edits() -> None:
        pages, numbers = list(range(60)), iter(range(60, 1000))
        for version in range(1, 201):
            at = draw.randrange(len(pages))
            file, kind = folder / f"{pages[at]}.md", draw.random()
            if kind < 0.2:
                file.unlink()
                del pages[at]
            elif kind < 0.3:
                pages[at] = next(numbers)
                file.rename(folder / f"{pages[at]}.md")
            elif kind < 0.4:
                pages.append(next(numbers))
                (folder / f"{pages[-1]}.md").write_text(page(pages[-1]))
            else:
                file.write_text(page(pages[at], version))
            time.sleep(draw.random() * 0.1)

    reader = threading.Thread(target=load)
    reader.start()
    try:
        follow_edits([watch], edits, quiet=5)
    finally:
        stop.set()
        reader.join()
    assert not failures
    assert max(encoded.values()) == 1
    assert rows(index) == fresh_rows(folder, split, tmp_path / "fresh.idx")
