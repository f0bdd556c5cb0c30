"""Building with several workers: the bytes of a build in one process, whoever dies meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from commands import Commands, jsonl
from decoupled.errors import DecoupledError, InputError, MissingDependency
from decoupled.index import ingest as module
from decoupled.index.index import Index
from decoupled.index.record import digest
from decoupled.index.workers import Encoder, Processes, in_order
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.serve.cluster.ray import connected
from decoupled.serve.cluster.workers import Actors
from index_content import same_as
from index_writer import CODEC, WHOLE, passages

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")

CORPUS = [*WHOLE, *passages(100, 110, edition=1), *passages(120, 400)]
"""Ten ids come twice with other content: the last one stays."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    torch.set_num_threads(1)
    for name, value in (("PART", 12), ("SAMPLE", 48), ("UPKEEP", 60)):
        monkeypatch.setattr(module, name, value)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "split"
    Model.split(model("bert", "rank"), at=2).save(path)
    return path


@pytest.fixture
def alone(saved, tmp_path) -> Path:
    """The index that one process builds."""
    with Index.create(tmp_path / "alone.idx", saved, codec=CODEC) as index:
        done = index.add(CORPUS)
    assert done.added == 410 and done.replaced == 10
    return tmp_path / "alone.idx"


def children() -> list[psutil.Process]:
    return [
        c for c in psutil.Process().children(recursive=True) if "spawn_main" in str(c.cmdline())
    ]


@pytest.mark.slow
def test_a_killed_process_changes_no_byte(alone, saved, tmp_path):
    path, seen = tmp_path / "together.idx", []
    with Index.create(path, saved, codec=CODEC) as index, Processes(path, 2, threads=1) as workers:

        def kill(done) -> None:
            seen.append(done.added)
            if len(seen) == 3:
                os.kill(children()[-1].pid, signal.SIGKILL)

        done = index.add(CORPUS, progress=kill, workers=workers)
    assert (done.added, done.replaced) == (410, 10) and len(seen) > 3
    same_as(alone)(path)


class Ahead:
    """Workers of this process, which are always several parts ahead."""

    def __init__(self, path: Path) -> None:
        self._encoder = Encoder(str(path))

    def stage(self, parts):
        stage, same = self._encoder.stage, lambda sent: sent
        return in_order(
            parts, send=stage, is_done=lambda sent: len(sent.ids) % 2, result=same, ahead=9
        )


def test_a_build_goes_on_with_workers_where_it_stopped(saved, tmp_path):
    # After a stop the batches are others; the bytes are the same.
    given = CORPUS[:240]
    alone, path = tmp_path / "alone.idx", tmp_path / "resumed.idx"
    with Index.create(alone, saved, codec=CODEC) as index:
        index.add(given)
    with Index.create(path, saved, codec=CODEC) as index:
        index.add(given[:150])
    with Index.open(path, write=True) as index:
        done = index.add(given, workers=Ahead(path))
        assert done.added < 150 and done.unchanged > 100
        assert index.add(given[150:], workers=Ahead(path)).added == 0
    same_as(alone)(path)


def test_an_id_that_changes_back_and_forth_ends_with_its_last_content(saved, tmp_path):
    """Whatever is stored and whatever is still on its way."""
    path = tmp_path / "i"
    old, new = passages(0, 12), passages(0, 12, edition=1)
    with Index.create(path, saved, codec=CODEC) as index:
        for workers in (None, Ahead(path)):
            index.add(new)
            done = index.add([*old, *new], workers=workers)
            assert (done.added, done.replaced, done.unchanged) == (24, 24, 0)
            assert index.store.snapshot.digests([p.id for p in new]) == [digest(p) for p in new]


@pytest.mark.slow
def test_a_part_that_cannot_be_stored_is_the_users_error(saved, tmp_path):
    path = tmp_path / "bad.idx"
    with Index.create(path, saved, codec=CODEC) as index, Processes(path, 1) as workers:
        with pytest.raises(InputError, match="lone surrogate"):
            index.add([*WHOLE[:60], Passage(id="x", text="half \ud800")], workers=workers)
        assert index.add(WHOLE[:60], workers=workers).unchanged >= 48


@pytest.mark.slow
def test_a_worker_that_cannot_open_the_index_says_why(saved, tmp_path):
    with Index.create(tmp_path / "here.idx", saved, codec=CODEC) as index:
        index.add(WHOLE[:60])
        with (
            Processes(tmp_path / "elsewhere.idx", 1) as workers,
            pytest.raises(
                InputError, match=r"elsewhere\.idx does not exist, so it is not an index"
            ),
        ):
            index.add(WHOLE, workers=workers)


def test_results_come_in_order_and_few_parts_are_ahead():
    sent: list[int] = []
    running: set[int] = set()
    most = 0

    def send(part):
        nonlocal most
        sent.append(part)
        running.add(part)
        most = max(most, len(running))
        return part

    def result(part):
        running.discard(part)
        return part

    staged = in_order(iter(range(20)), send=send, is_done=lambda p: p % 3, result=result, ahead=6)
    assert [number for group in staged for number in group] == list(range(20))
    assert most == 6 and sent == list(range(20))


def test_staging_needs_a_build_that_has_begun(saved, tmp_path):
    Index.create(tmp_path / "i", saved, codec=CODEC).close()
    with pytest.raises(DecoupledError, match="is empty; a part can be staged once it has begun"):
        Index.open(tmp_path / "i").stage(WHOLE[:3])


def test_a_cluster_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(MissingDependency, match=r'pip install "decoupled-transformer\[cluster\]"'),
        connected("local"),
    ):
        pass


def test_a_cluster_that_is_not_there_is_one_line(saved, tmp_path, monkeypatch, capsys):
    pytest.importorskip("ray", reason="needs the extra `cluster`")
    corpus = jsonl(tmp_path / "c.jsonl", [{"id": p.id, "text": p.text} for p in WHOLE[:3]])
    words = ("index", corpus, "--model", saved, "-o", tmp_path / "i", "--cluster", "127.0.0.1:1")
    failed = Commands(monkeypatch, capsys)(*words)
    assert "no Ray cluster answers at '127.0.0.1:1'" in failed.failure


@pytest.mark.slow
def test_the_command_line_builds_with_workers(saved, tmp_path, monkeypatch, capsys):
    run = Commands(monkeypatch, capsys)
    monkeypatch.chdir(tmp_path)
    corpus = jsonl(tmp_path / "c.jsonl", [{"id": p.id, "text": p.text} for p in WHOLE])
    words = ("index", corpus, "--model", saved, "-o")
    assert run(*words, "two.idx", "--workers", 2, "--json").json["added"] == 120
    assert run(*words, "one.idx", "--json").json["added"] == 120
    same_as(tmp_path / "one.idx")(tmp_path / "two.idx")


@pytest.mark.slow
def test_a_ray_cluster_that_loses_workers_builds_the_same_bytes(alone, saved, tmp_path):
    pytest.importorskip("ray", reason="needs the extra `cluster`")
    path = tmp_path / "ray.idx"
    with (
        connected("local", cpus=2) as ray,
        Index.create(path, saved, codec=CODEC) as index,
        Actors(ray, path, 2) as workers,
    ):
        killed: list[int] = []
        killer = threading.Thread(target=kill_actors, args=(killed,), daemon=True)
        killer.start()
        done = index.add(slowly(CORPUS), workers=workers)
    assert len(set(killed)) == 2
    assert (done.added, done.replaced) == (410, 10)
    same_as(alone)(path)


def slowly(stream):
    """So that the build outlives two deaths."""
    for number, passage in enumerate(stream):
        if number > 100:
            time.sleep(0.02)
        yield passage


def kill_actors(killed: list[int]) -> None:
    """Kill a worker of this process's cluster twice."""
    while len(killed) < 2:
        time.sleep(2.5)
        ours = psutil.Process().children(recursive=True)
        victims = [p for p in ours if any("ray::Encoder" in word for word in p.cmdline())]
        if victims:
            os.kill(victims[0].pid, signal.SIGKILL)
            killed.append(victims[0].pid)
