"""A disk that is full at any point of a write: an error in words, the index as it was, and going on works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from decoupled.errors import DecoupledError
from decoupled.index import ingest
from decoupled.index.index import Index
from decoupled.model.model import Model
from faults.figures import record
from index_content import content, same_as
from index_writer import CODEC, MORE, WHOLE

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform == "win32", reason="no RLIMIT_FSIZE"),
]

TRIES = 12
CHILD = """
import resource, sys
limit = int(sys.argv[2])
from decoupled.errors import DecoupledError
from decoupled.index import ingest
from decoupled.index.index import Index
from index_writer import MORE
ingest.PART = 12
with Index.open(sys.argv[1], write=True) as index:
    index.runtime.encode("passage", [index.runtime.tokenizer.query("a")])  # loaded before
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        index.add(MORE)
    except (DecoupledError, OSError) as error:
        sys.exit(f"said: {error}")
"""


@pytest.fixture(scope="module")
def start(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("space") / "start.idx"
    with Index.create(path, Model.split(model("bert", "rank"), at=2), codec=CODEC) as index:
        index.add(WHOLE)
    return path


def test_a_file_that_cannot_grow_loses_nothing(start, tmp_path, monkeypatch):
    monkeypatch.setattr(ingest, "PART", 12)  # texts that are encoded together, as in the child
    whole = tmp_path / "whole.idx"
    shutil.copytree(start, whole)
    with Index.open(whole, write=True) as index:
        index.add(MORE)
    same, before = same_as(whole), content(start)
    largest = max(
        f.stat().st_size for f in whole.rglob("*") if f.is_file() and "model" not in f.parts
    )
    outcomes: Counter[str] = Counter()
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    for number in range(TRIES):
        path = tmp_path / "copy.idx"
        shutil.copytree(start, path)
        limit = str(largest * (number + 1) // TRIES)
        command = [sys.executable, "-c", CHILD, str(path), limit]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=240,
        )
        said = done.stderr.strip().splitlines()
        assert done.returncode == 0 or any(s.startswith("said: ") for s in said), done.stderr[
            -2000:
        ]
        outcomes["error in words" if done.returncode else "had room"] += 1
        kept = content(path)
        changed = {p.id for p in MORE}
        assert all(kept[key] == row for key, row in before.items() if key[0] not in changed)
        with Index.open(path, write=True) as index:
            index.add(MORE)
        same(path)
        shutil.rmtree(path)
    record("space", tries=TRIES, outcomes=dict(outcomes), lost=0)
    assert outcomes["error in words"] > TRIES // 3


def test_an_index_that_cannot_be_written_is_an_error_in_words(start, tmp_path, monkeypatch):
    path = tmp_path / "copy.idx"
    shutil.copytree(start, path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with Index.open(path, write=True) as index:
        monkeypatch.setattr("decoupled.index.store.head.TableHead.save", full)
        with pytest.raises(DecoupledError, match=r"the disk of .* is full"):
            index.delete(["p1"])
    monkeypatch.undo()
    assert len(Index.open(path)) in (119, 120)
    with Index.open(path, write=True) as index:
        index.delete(["p1"])
        assert len(index) == 119
