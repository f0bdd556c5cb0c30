"""Kill a writer at random moments: nothing that it acknowledged is lost, nothing is there by halves."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from decoupled.index.store import changes
from decoupled.index.store.lance import LanceStore
from faults import figures
from records import TOKEN_BYTES, WIDTH, record

Model = dict[str, list[str]]


def write_forever(path: str, seed: int) -> None:
    """The child: says what it is about to do, does it, says that it is done."""
    rng = random.Random(seed)
    # Small enough that merging happens all the time.
    changes._MANY, changes._STEPS, changes.SMALL = 4, (64, 16), 2000
    store = LanceStore.open(path, write=True)
    say("ready")
    for step in range(1_000_000):
        kind = rng.choices(["append", "delete", "optimise", "compact"], [6, 2, 2, 1])[0]
        plan: dict[str, object] = {"kind": kind}
        if kind == "append":
            chosen = rng.sample(range(60), rng.randint(1, 12))
            plan["part"] = f"{seed}-{step}"
            plan["new"] = {
                f"p{i}": [f"w{rng.randrange(9)} v{seed} v{step}" for _ in range(rng.randint(1, 3))]
                for i in chosen
            }
        if kind == "delete":
            plan["ids"] = [f"p{rng.randrange(60)}" for _ in range(rng.randint(1, 5))]
        say(json.dumps(plan))
        carry_out(store, plan, timedelta(seconds=rng.choice([0, 0, 3600])))
        say("done")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def carry_out(store: LanceStore, plan: dict, older_than: timedelta) -> None:
    match plan["kind"]:
        case "append":
            new = plan["new"].items()
            records = [record(i, t, window=n) for i, texts in new for n, t in enumerate(texts)]
            store.append(records, part=plan["part"])
        case "delete":
            store.delete(plan["ids"])
        case "optimise":
            store.optimise()
        case "compact":
            store.compact(older_than=older_than)


def after(model: Model, parts: set[str], plan: dict) -> tuple[Model, set[str]]:
    """What a dictionary holds after the plan."""
    if plan["kind"] == "append":
        return {**model, **plan["new"]}, parts | {plan["part"]}
    gone = set(plan.get("ids", []))
    return {i: texts for i, texts in model.items() if i not in gone}, parts


def found(path: Path) -> tuple[Model, set[str]]:
    """What the store holds, with every record read and compared with the one it must be."""
    with LanceStore.open(path, write=True) as store:
        view = store.snapshot
        windows: dict[tuple[str, int], str] = {}
        for excerpt in view.scan():
            assert (excerpt.id, excerpt.window) not in windows, "a record is there twice"
            windows[excerpt.id, excerpt.window] = excerpt.text
        model: Model = {}
        for (i, _), text in sorted(windows.items()):
            model.setdefault(i, []).append(text)
        rows = view.locate(list(model))
        keys = [(i, n) for i, texts in model.items() for n in range(len(texts))]
        for (i, n), stored in zip(keys, view.states(rows), strict=True):
            assert np.array_equal(stored, record(i, model[i][n], window=n).states)
        for word in ("w0", "w4"):
            hits = {(e.id, e.window) for e in view.texts(view.lexical(word, 1000).rows)}
            assert hits == {k for k, t in windows.items() if word in t.split()}
        return model, set(view.parts)


def kill_and_check(path: Path, kills: int, seed: int) -> tuple[int, Counter[str]]:
    """How much was acknowledged, and what was under way when the writer was killed."""
    rng = random.Random(seed)
    model: Model = {}
    parts: set[str] = set()
    acknowledged, during = 0, Counter[str]()
    for round_ in range(kills):
        command = [sys.executable, __file__, str(path), str(seed * 1000 + round_)]
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=paths) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0.0, 0.6))
            child.send_signal(signal.SIGKILL)
            lines = child.stdout.read().splitlines()
        assert child.returncode == -signal.SIGKILL, "the writer ended by itself"
        plan = None
        for line in lines:
            if line == "done":
                model, parts = after(model, parts, plan)
                plan = None
                acknowledged += 1
            elif line.endswith("}"):
                plan = json.loads(line)
        during[plan["kind"] if plan else "between"] += 1
        now = found(path)
        possible = [(model, parts)] + ([after(model, parts, plan)] if plan else [])
        assert now in possible, f"round {round_} of seed {seed}: {plan}"
        model, parts = now
    return acknowledged, during


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_four_kills(tmp_path):
    LanceStore.create(tmp_path / "k.idx", token_bytes=TOKEN_BYTES, width=WIDTH).close()
    assert kill_and_check(tmp_path / "k.idx", kills=4, seed=1)[0] > 4


@pytest.mark.faults
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_many_kills(tmp_path):
    held, during = 0, Counter[str]()
    for seed in range(2, 6):
        path = tmp_path / f"k{seed}.idx"
        LanceStore.create(path, token_bytes=TOKEN_BYTES, width=WIDTH).close()
        some, kinds = kill_and_check(path, kills=40, seed=seed)
        held, during = held + some, during + kinds
    counts = {"kills": during.total(), "during": dict(during), "acknowledged": held}
    figures.record("kills_store", **counts, lost=0, doubled=0, changed=0)
    assert held > 2 * during.total() and during["delete"] and during["compact"]


if __name__ == "__main__":
    write_forever(sys.argv[1], int(sys.argv[2]))
