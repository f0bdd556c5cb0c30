"""One byte of any file changed: reading is refused, or says what it said before. Never a wrong answer."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import decoupled as dc
from decoupled.index.index import Index
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from faults.figures import record
from faults.flips import of_index

pytestmark = pytest.mark.faults

FLIPS, REPAIRS = 1200, 60
PATIENCE = 120.0
PLACES = ("river", "town", "castle", "spring", "house")


def passages(first: int, last: int) -> list[Passage]:
    return [
        Passage(
            id=f"p{n}",
            text=f"the {PLACES[n % 5]} of number {n}",
            title=f"part {n % 3}",
            meta={"n": n},
        )
        for n in range(first, last)
    ]


@pytest.fixture(scope="module")
def root(model, tmp_path_factory) -> Path:
    """A model calibrated for int8, and an index with everything that one can have."""
    root = tmp_path_factory.mktemp("flips")
    Model.split(model("bert", "rank"), at=2).save(root / "model")
    dc.export(root / "model", int8=True, limit=8)
    with Index.create(root / "index", root / "model", codec="project:8+int8") as index:
        index.add(passages(0, 60))
        index.delete(["p7", "p8"])
    with Index.open(root / "index", write=True) as index:
        index.add([*passages(60, 80), Passage(id="long", text="the river and the town " * 60)])
    return root


class Reader:
    """The process that reads, and a watch over it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._start()

    def _start(self) -> None:
        paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
        command = [sys.executable, "-m", "faults.flips", str(self._root)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        env = {**os.environ, "PYTHONPATH": paths}
        self._child = subprocess.Popen(command, text=True, bufsize=1, env=env, **pipes)
        assert self._answer() == {"ready": True}

    def _answer(self) -> dict:
        ready, _, _ = select.select([self._child.stdout], [], [], PATIENCE)
        if not ready:
            self._child.kill()
            return {"outcome": "hang", "said": ""}
        line = self._child.stdout.readline()
        return json.loads(line) if line else {"outcome": "crash", "said": f"{self._child.wait()}"}

    def flip(self, file: str, place: int, mask: int) -> dict:
        before = (self._root / file).read_bytes()
        self._child.stdin.write(f"{file} {place} {mask}\n")
        answer = self._answer()
        if answer["outcome"] in ("crash", "hang"):
            self._child.wait()
            (self._root / file).write_bytes(before)
            self._start()
        return answer

    def close(self) -> None:
        self._child.stdin.close()
        self._child.wait()


def plan(root: Path, count: int) -> list[tuple[str, int, int]]:
    """Flips of every file in turn, the same for the same files."""
    files = sorted(f for f in root.rglob("*") if f.is_file() and f.stat().st_size)
    draw = random.Random(1)
    names = [str(f.relative_to(root)) for f in files]
    rounds = [names[n % len(names)] for n in range(count)]
    return [(n, draw.randrange((root / n).stat().st_size), draw.randrange(1, 256)) for n in rounds]


def kind_of(name: str) -> str:
    parts = name.split("/")
    if parts[0] == "model" or parts[1] == "model":
        return "model"
    return "/".join(parts[1:3]) if parts[1] == "passages.lance" else parts[1]


def test_no_changed_byte_is_answered_from(root):
    began, reader = time.perf_counter(), Reader(root)
    outcomes: dict[str, Counter[str]] = {}
    bad = []
    for flip in plan(root, FLIPS):
        answer = reader.flip(*flip)
        outcomes.setdefault(kind_of(flip[0]), Counter())[answer["outcome"]] += 1
        if answer["outcome"] not in ("refused", "harmless"):
            bad.append((flip, answer))
    reader.close()
    total = sum(outcomes.values(), Counter())
    record(
        "flips",
        flips=total.total(),
        files=len({name for name, _, _ in plan(root, FLIPS)}),
        seconds=round(time.perf_counter() - began),
        outcomes={
            o: total[o] for o in ("refused", "harmless", "wrong", "traceback", "crash", "hang")
        },
        by_kind={kind: dict(counts) for kind, counts in sorted(outcomes.items())},
    )
    assert not bad, bad[:10]
    assert total["refused"] > FLIPS // 2


def damaged(root: Path, copy: Path, flips: list[tuple[str, int, int]]) -> Path:
    """A copy of the index with these bytes changed."""
    shutil.copytree(root / "index", copy)
    for name, place, mask in flips:
        file = copy / name.partition("/")[2]
        content = bytearray(file.read_bytes())
        content[place] ^= mask
        file.write_bytes(content)
    return copy


def repaired(copy: Path, sound: str) -> str:
    """What `check --repair` made of an index."""
    try:
        found = dc.check(copy, repair=True)
    except dc.DecoupledError:
        return "refused"
    if found.lost:
        return "lost and named"
    if not found.sound:
        return "not repairable"
    return "as before" if json.dumps(of_index(copy)) == sound else "wrong"


def test_repair_gives_back_what_was_there_or_says_what_is_lost(root, tmp_path):
    sound = json.dumps(of_index(root / "index"))
    outcomes: Counter[str] = Counter()
    draw, wrong = random.Random(2), []
    chosen = [f for f in plan(root, FLIPS) if f[0].startswith("index/") and "/model/" not in f[0]]
    for number in range(REPAIRS):
        flips = draw.sample(chosen, 1 + number % 2)
        copy = damaged(root, tmp_path / "copy", flips)
        outcomes[outcome := repaired(copy, sound)] += 1
        if outcome == "wrong":
            wrong.append(flips)
        shutil.rmtree(copy)
    record("repairs", tried=REPAIRS, outcomes=dict(sorted(outcomes.items())))
    assert not wrong, wrong
    assert outcomes["as before"] > REPAIRS // 2
