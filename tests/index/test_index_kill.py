"""Kill -9 at random moments of a build, an append and a compaction: the index ends as if nothing had been.

Writers are forked from a server that has imported torch, so that a kill costs little; not Lance, whose
threads do not survive a fork.
"""

from __future__ import annotations

import multiprocessing
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from decoupled.errors import DecoupledError
from decoupled.index.index import Index
from decoupled.index.record import digest
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from faults.figures import record
from index_content import content, same_as
from index_writer import GONE, MORE, WHOLE, write

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["decoupled.runtime.torch"])
PATIENCE = 120.0


@dataclass
class Scene:
    """One kind of work on copies of a starting point, and what it must lead to."""

    work: str
    folder: Path
    model: Path
    start: Path | None
    stream: Sequence[Passage]
    kills: int = 0
    acknowledged: int = 0
    completed: int = 0
    copies: int = 0
    began: float = 0.0

    def run(self, path: Path, *, after: float = PATIENCE, die: str = "") -> bool:
        """Let a child work; kill it after so many seconds. True if it came to its end."""
        diary = self.folder / f"{path.name}.diary"
        diary.unlink(missing_ok=True)
        arguments = (self.work, str(path), str(self.model), str(diary), die)
        process = FORKS.Process(target=write, args=arguments)
        process.start()
        while not diary.exists() and process.is_alive():  # it is still importing
            time.sleep(0.001)
        self.began = time.perf_counter()
        process.join(after)
        if process.exitcode is None:
            process.kill()
            process.join()
            assert after < PATIENCE, "the child hangs"
        assert process.exitcode in (0, -signal.SIGKILL), "the child failed by itself"
        killed = process.exitcode != 0
        self.kills += killed
        lines = diary.read_text().splitlines() if diary.exists() else []
        self.check_acknowledged(path, int(lines[-1]) if lines else 0)
        return not killed

    def check_acknowledged(self, path: Path, count: int) -> None:
        """Every passage that was acknowledged is there, as it came; it takes a reader alone."""
        self.acknowledged += count
        if not count:
            return
        with Index.open(path) as index:
            wanted = {p.id: digest(p) for p in self.stream[:count]}
            assert index.store is not None
            assert index.store.snapshot.digests(list(wanted)) == list(wanted.values())

    def fresh(self) -> Path:
        self.copies += 1
        path = self.folder / f"{self.work}-{self.copies}.idx"
        if self.start is not None:
            shutil.copytree(self.start, path)
        return path

    def uninterrupted(self) -> tuple[Path, float]:
        path = self.fresh()
        assert self.run(path)
        return path, time.perf_counter() - self.began

    def torment(self, kills: int, seed: int, seconds: float, check: Callable[[Path], None]) -> None:
        """Start over until so many kills have hit, going on after each, and check every end.

        A kill comes at any moment of the `seconds` that undisturbed work takes.
        """
        rng = random.Random(seed)

        def moment() -> float:
            return rng.uniform(0.0, seconds) if self.kills < kills else PATIENCE

        while self.kills < kills:
            self.completed += 1
            path = self.fresh()
            while not self.run(path, after=moment()):
                if self.work == "compact":
                    check(path)
            check(path)
            shutil.rmtree(path)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "split"
    Model.split(model("bert", "rank"), at=2).save(path)
    return path


@pytest.fixture(scope="module")
def complete(saved, tmp_path_factory) -> Path:
    """An index of WHOLE that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    path, _ = Scene("build", folder, saved, None, WHOLE).uninterrupted()
    assert len({key[0] for key in content(path)}) == len(WHOLE)
    assert len(content(path)) > len(WHOLE)
    return path


def torment_build(folder: Path, model: Path, complete: Path, kills: int, seed: int = 1) -> Scene:
    scene = Scene("build", folder, model, None, WHOLE)
    _, seconds = scene.uninterrupted()
    scene.torment(kills, seed, seconds, same_as(complete))
    return scene


def torment_append(folder: Path, model: Path, complete: Path, kills: int, seed: int = 2) -> Scene:
    scene = Scene("append", folder, model, complete, MORE)
    reference, seconds = scene.uninterrupted()
    end = content(reference)
    assert len({key[0] for key in end}) == 180
    assert end["p0", 0] == content(complete)["p0", 0]
    assert end["p110", 0] != content(complete)["p110", 0]
    scene.torment(kills, seed, seconds, same_as(reference))
    return scene


def torment_compaction(
    folder: Path, model: Path, complete: Path, kills: int, seed: int = 3
) -> Scene:
    start = folder / "start.idx"
    shutil.copytree(complete, start)
    with Index.open(start, write=True) as index:
        assert index.delete(GONE) == len(GONE)
    same = same_as(start)
    scene = Scene("compact", folder, model, start, ())
    compacted, seconds = scene.uninterrupted()
    left = sum(f.stat().st_size for f in (compacted / "states").glob("*.bin"))
    assert left < sum(f.stat().st_size for f in (start / "states").glob("*.bin"))

    def check(path: Path) -> None:
        same(path)
        assert not set(GONE) & {key[0] for key in content(path)}

    scene.torment(kills, seed, seconds, check)
    scene.run(path := scene.fresh())
    assert sum(f.stat().st_size for f in (path / "states").glob("*.bin")) == left
    return scene


def test_a_killed_build_ends_like_an_uninterrupted_one(tmp_path, saved, complete):
    scene = torment_build(tmp_path, saved, complete, kills=2)
    assert scene.kills >= 2 and scene.acknowledged > len(WHOLE)


@pytest.mark.slow
def test_a_killed_append_ends_like_an_uninterrupted_one(tmp_path, saved, complete):
    scene = torment_append(tmp_path, saved, complete, kills=4)
    assert scene.kills >= 4 and scene.acknowledged > len(MORE)


def test_a_killed_compaction_changes_nothing(tmp_path, saved, complete):
    assert torment_compaction(tmp_path, saved, complete, kills=2).kills >= 2


@pytest.mark.parametrize(
    "die",
    [
        "before:write_manifest",
        "before:save_codec",
        "after:save_codec",
        "after:create",
        "after:append",
    ],
)
def test_a_kill_at_each_step_of_the_beginning(tmp_path, saved, complete, die):
    scene = Scene("build", tmp_path, saved, None, WHOLE)
    path = scene.fresh()
    assert not scene.run(path, die=die)
    assert scene.run(path)
    same_as(complete)(path)


def test_a_kill_before_the_table_has_its_first_version(tmp_path, saved, complete):
    scene = Scene("build", tmp_path, saved, None, WHOLE)
    path = scene.fresh()
    assert not scene.run(path, die="before:create")
    (path / "passages.lance" / "data").mkdir(parents=True)
    with Index.open(path) as index:
        assert len(index) == 0
    assert scene.run(path)
    same_as(complete)(path)


def test_the_check_sees_a_changed_byte(tmp_path, complete):
    """These tests can fail: one flipped byte of one state is a difference."""
    check = same_as(complete)
    shutil.copytree(complete, tmp_path / "other.idx")
    check(tmp_path / "other.idx")
    segment = max((tmp_path / "other.idx" / "states").glob("*.bin"))
    values = np.fromfile(segment, np.uint8)
    values[5] ^= 1
    values.tofile(segment)
    with pytest.raises(DecoupledError, match="are damaged"):
        check(tmp_path / "other.idx")


@pytest.mark.faults
def test_a_hundred_kills(tmp_path, saved, complete):
    works = {"build": (torment_build, 40), "append": (torment_append, 30)}
    works["compact"] = (torment_compaction, 30)
    figures = {}
    for name, (work, kills) in works.items():
        folder = tmp_path / name
        folder.mkdir()
        scene = work(folder, saved, complete, kills, seed=7)
        figures[name] = {"kills": scene.kills, "acknowledged": scene.acknowledged}
        assert scene.kills >= kills
    record("kills_index", works=figures, lost=0, doubled=0, changed=0)
