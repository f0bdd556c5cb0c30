"""How many small wrong changes do the tests notice?

    make mutants                      # 200 of them, in search, codecs, modules, training and measures
    python tests/mutants --sample 50 --seed 3 src/decoupled/measure

First every test of TESTS runs once under a tracer (`reach.py`), which says what lines it reaches and how long
it takes. A mutant is one change of one file (`change.py`), made while the module is imported, in a forked
process that has torch loaded already and in those that it starts (`child`); it runs the tests that reach the
line, the room's own and the quickest first, until one fails. What no test reaches survives. The report is the
state: the same command goes on where it stopped, `--minutes` stops it, `--again` tries what survived again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src"), str(Path(__file__).parent)]

import pytest  # noqa: E402
from change import Mutant, mutants  # noqa: E402
from reach import QUIET, inherited, reached, silence  # noqa: E402
from swapped import Swapped  # noqa: E402

SOURCES = ("search", "model/codec", "model/nn", "train", "measure")
TESTS = ("measure", "model", "search", "train", "index", "runtime", "serve")
ALIVE = ("survived", "unreached")
NAMED = ("path", "code", "column", "change")
"""What a mutant is known by, wherever its line has moved to."""


def chosen(mutant: Mutant, tests: dict[str, Any], budget: float) -> tuple[list[str], float]:
    """The tests that reach its line (its module, outside of functions), within the budget of seconds."""
    room = "tests/" + mutant.path.removeprefix("src/decoupled/").split("/")[0]
    lines = {mutant.line} if mutant.scope else None

    def reaches(of: dict[str, Any]) -> bool:
        here = of["lines"].get(mutant.path, ())
        return bool(here) if lines is None else not lines.isdisjoint(here)

    fit = [test for test, of in tests.items() if reaches(of)]
    if not fit and mutant.scope:  # a continued line, or a default: whoever enters the function
        lines = set(range(mutant.scope[0], mutant.scope[1] + 1))
        fit = [test for test, of in tests.items() if reaches(of)]
    fit.sort(key=lambda test: (not test.startswith(room), tests[test]["seconds"]))
    kept, total = [], 0.0
    for test in fit:
        if kept and total + tests[test]["seconds"] > budget:
            continue
        kept.append(test)
        total += tests[test]["seconds"]
    return kept, total


def verdict(mutant: Mutant, tests: list[str], seconds: float) -> str:
    """`killed`, `timeout`, `survived` or `unreached`."""
    if not tests:
        return "unreached"
    swapped = Swapped(mutant.path, mutant.number)
    swapped.code()
    child = os.fork()
    if child == 0:
        os.setsid()
        silence()
        sys.meta_path.insert(0, swapped)
        inherited("MUTANT", f"{mutant.path}:{mutant.number}")
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        whole = [t for file in files for t in tests if t.startswith(file + "::")]
        rc = pytest.main(["-x", *QUIET, *whole])
        os._exit(0 if rc == 0 else 1)
    end = time.monotonic() + 20 + 4 * seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if status == 0 else "killed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def sampled(paths: list[str], size: int, seed: int) -> list[Mutant]:
    """As many of each path."""
    chance, taken = random.Random(seed), []
    for path in paths:
        files = [ROOT / path] if path.endswith(".py") else sorted((ROOT / path).rglob("*.py"))
        every = [mutant for file in files for mutant in mutants(file, ROOT)]
        taken += chance.sample(every, min(size // len(paths), len(every)))
    return taken


def drawn(given: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the report so far, or those of a new sample. A row is found by its code, not its line."""
    if not (given.json and given.json.exists()):
        return [
            {**mutant.told, "verdict": None}
            for mutant in sampled(given.paths, given.sample, given.seed)
        ]
    rows = json.loads(given.json.read_text())["mutants"]
    for row in rows:
        if given.again and row["verdict"] in ALIVE:
            row["verdict"] = None
    return rows


def found(row: dict[str, Any]) -> Mutant | None:
    """The mutant of a row in the file as it is now: the nearest of those that read the same."""
    path = ROOT / row["path"]
    same = [
        mutant
        for mutant in (mutants(path, ROOT) if path.exists() else ())
        if all(mutant.told[name] == row[name] for name in NAMED)
    ]

    def far(mutant: Mutant) -> tuple[int, int]:
        return abs(mutant.line - row["line"]), abs(mutant.number - row["number"])

    return min(same, key=far, default=None)


def report(given: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The score: dead of all that were tried, without those that a reason shows to be equivalent."""
    reasons = json.loads((Path(__file__).parent / "equivalent.json").read_text(encoding="utf-8"))
    why = {tuple(of[name] for name in NAMED): of["why"] for of in reasons}
    for row in rows:
        reason = why.get(tuple(row[name] for name in NAMED))
        if reason and row["verdict"] in ALIVE:
            row |= {"verdict": "equivalent", "why": reason}
    counts = Counter(row["verdict"] or "to do" for row in rows)
    dead = counts["killed"] + counts["timeout"]
    alive = counts["survived"] + counts["unreached"]
    return {
        "paths": given.paths,
        "sample": len(rows),
        "seed": given.seed,
        **counts,
        "score": round(dead / max(1, dead + alive), 3),
        "mutants": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("paths", nargs="*", default=[f"src/decoupled/{s}" for s in SOURCES])
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=20, help="seconds of tests for a mutant")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--tests", nargs="*", default=list(TESTS), help="folders or files in tests")
    parser.add_argument("--again", action="store_true", help="try what survived once more")
    parser.add_argument("--json", type=Path, help="the report, and where it goes on from")
    given = parser.parse_args()

    until = time.monotonic() + 60 * given.minutes
    os.chdir(ROOT)
    import torch

    torch.set_num_threads(1)
    rows = drawn(given)
    tests = reached(given.tests, until)
    for row in rows if tests is not None else ():
        if row["verdict"]:
            continue
        if time.monotonic() > until:
            break
        began = time.monotonic()
        mutant = found(row)
        fit, seconds = chosen(mutant, tests, given.budget) if mutant else ([], 0.0)
        row["verdict"] = verdict(mutant, fit, seconds) if mutant else "gone"
        row |= {"tests": len(fit), "seconds": round(time.monotonic() - began, 1)}
        where = f"{row['path']}:{row['line']} {row['change']}"
        sys.stdout.write(f"{row['verdict']:9} {row['seconds']:6.1f} s  {where}\n")
        sys.stdout.flush()
        if given.json:
            _kept(given, rows)
    if given.json:
        _kept(given, rows)
    told = {k: v for k, v in report(given, rows).items() if k not in ("paths", "mutants")}
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


def _kept(given: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    given.json.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report(given, rows), indent=1, ensure_ascii=False)
    given.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
