"""How many small wrong changes do the tests notice?

    make mutants                      # 200 of them, in search, codecs, modules, training and measures
    python tests/mutants --sample 50 --seed 3 src/decoupled/measure

First every test of TESTS runs once under a tracer, which says what lines it reaches and how long it takes
(kept in build/mutants, made again where sources changed). A mutant is one change of one file (`change.py`),
made while the module is imported, in a forked process that has torch loaded already; it runs the tests
that reach the line, the room's own and the quickest first, until one fails. What no test reaches survives.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src"), str(Path(__file__).parent)]

import pytest  # noqa: E402
from change import Mutant, changed, mutants  # noqa: E402

SOURCES = ("search", "model/codec", "model/nn", "train", "measure")
TESTS = ("measure", "model", "search", "train", "index", "runtime")
BUILD = ROOT / "build" / "mutants"


class Reach:
    """A pytest plugin: the lines of the sources that each test executes, and its seconds."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, set[int]]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self._now: dict[str, set[int]] = defaultdict(set)
        self._here = str(ROOT / "src") + "/"

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(self._here):
            return None
        lines = self._now[path.removeprefix(str(ROOT) + "/")]

        def local(frame: FrameType, event: str, _: Any) -> Any:
            lines.add(frame.f_lineno)
            return local

        return local

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._now = defaultdict(set)
        sys.settrace(self.trace)
        threading.settrace(self.trace)
        began = time.perf_counter()
        yield
        sys.settrace(None)
        self.seconds[item.nodeid] = round(time.perf_counter() - began, 3)
        self.of[item.nodeid] = dict(self._now)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def reached(tests: list[str]) -> dict[str, Any]:
    """For each test: the lines it reaches; from the last run where neither its file nor a source changed."""
    sources = {p: digest(p) for p in sorted((ROOT / "src/decoupled").rglob("*.py"))}
    found: dict[str, Any] = {}
    imports: set[str] = set()
    for file in (p for name in tests for p in _test_files(ROOT / "tests" / name)):
        kept = BUILD / f"{file.stem}.json"
        of = json.loads(kept.read_text()) if kept.exists() else None
        fresh = (
            of
            and of["test"] == digest(file)
            and all(sources.get(ROOT / path) == was for path, was in of["sources"].items())
        )
        if not fresh:
            of = _traced(file, kept)
        found.update(of["tests"])
        imports.update(of["imports"])
    for name in sorted(imports):  # once, for every fork
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    return found


def _test_files(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("test_*.py"))


def _traced(file: Path, kept: Path) -> dict[str, Any]:
    """Run one test file under the tracer, in a process of its own."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        with _silent():
            plugin = Reach()
            pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)], [plugin])
            touched = {path for of in plugin.of.values() for path in of}
            kept.write_text(
                json.dumps(
                    {
                        "test": digest(file),
                        "imports": [
                            name
                            for name, of in list(sys.modules.items())
                            if "site-packages" in (getattr(of, "__file__", "") or "")
                        ],
                        "sources": {path: digest(ROOT / path) for path in touched},
                        "tests": {
                            test: {
                                "seconds": plugin.seconds[test],
                                "lines": {path: sorted(lines) for path, lines in of.items()},
                            }
                            for test, of in plugin.of.items()
                            if test not in plugin.failed
                        },
                    }
                )
            )
        os._exit(0)
    os.waitpid(child, 0)
    return json.loads(kept.read_text())


@contextlib.contextmanager
def _silent() -> Any:
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    yield


class Swapped(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from the changed tree."""

    def __init__(self, path: Path, code: CodeType) -> None:
        self.path, self.code = path, code
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        self.name = name.removesuffix(".__init__")

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        folder = [str(self.path.parent)] if self.path.stem == "__init__" else None
        return importlib.util.spec_from_file_location(
            name, self.path, loader=self, submodule_search_locations=folder
        )

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(self.code, module.__dict__)


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
    path = ROOT / mutant.path
    code = compile(changed(path.read_text(encoding="utf-8"), mutant.number), str(path), "exec")
    child = os.fork()
    if child == 0:
        os.setsid()
        with _silent():
            sys.meta_path.insert(0, Swapped(path, code))
            files = list(dict.fromkeys(test.split("::")[0] for test in tests))
            whole = [t for file in files for t in tests if t.startswith(file + "::")]
            rc = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *whole])
            os._exit(0 if rc == 0 else 1)
    end = time.monotonic() + 30 + 8 * seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if status == 0 else "killed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def sampled(paths: list[str], size: int, seed: int, again: Path | None) -> list[Mutant]:
    """As many of each path; or those of a report that survived."""
    chance, taken = random.Random(seed), []
    names = again and {
        row["name"]
        for row in json.loads(again.read_text())["mutants"]
        if row["verdict"] in ("survived", "unreached")
    }
    for path in paths:
        files = [ROOT / path] if path.endswith(".py") else sorted((ROOT / path).rglob("*.py"))
        every = [mutant for file in files for mutant in mutants(file, ROOT)]
        taken += (
            [mutant for mutant in every if mutant.name in names]
            if names is not None
            else chance.sample(every, min(size // len(paths), len(every)))
        )
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("paths", nargs="*", default=[f"src/decoupled/{s}" for s in SOURCES])
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=30, help="seconds of tests for a mutant")
    parser.add_argument("--tests", nargs="*", default=list(TESTS), help="folders or files in tests")
    parser.add_argument("--again", type=Path, help="only what survived in this report")
    parser.add_argument("--json", type=Path, help="write the report here")
    given = parser.parse_args()

    os.chdir(ROOT)
    os.nice(10)
    import torch

    torch.set_num_threads(1)
    tests = reached(given.tests)
    rows: list[dict[str, Any]] = []
    for mutant in sampled(given.paths, given.sample, given.seed, given.again):
        fit, seconds = chosen(mutant, tests, given.budget)
        began = time.monotonic()
        word = verdict(mutant, fit, seconds)
        rows.append(
            {
                "name": mutant.name,
                "verdict": word,
                "tests": len(fit),
                "seconds": round(time.monotonic() - began, 1),
            }
        )
        sys.stdout.write(f"{len(rows):4} {word:9} {rows[-1]['seconds']:6.1f} s  {mutant.name}\n")
        sys.stdout.flush()
        if given.json:
            given.json.write_text(json.dumps(_report(given, rows), indent=1) + "\n")
    sys.stdout.write(
        json.dumps({k: v for k, v in _report(given, rows).items() if k != "mutants"}) + "\n"
    )
    return 0


def _report(given: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    counts = Counter(row["verdict"] for row in rows)
    dead = counts["killed"] + counts["timeout"]
    return {
        "paths": given.paths,
        "sample": given.sample,
        "seed": given.seed,
        **counts,
        "score": round(dead / max(1, len(rows)), 3),
        "mutants": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
