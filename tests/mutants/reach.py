"""What lines of the sources each test executes, and in how many seconds: kept in build/mutants."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from lines import Tracer

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "mutants"
QUIET = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]


class Reach:
    """A pytest plugin that traces tests and the processes that they start."""

    def __init__(self, folder: Path) -> None:
        self.of: dict[str, dict[str, set[int]]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self._folder = folder
        self._sizes: dict[str, int] = {}
        """Bytes that the processes of a test had written when it ended."""

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        now: dict[str, set[int]] = defaultdict(set)
        trace = Tracer(lambda path, line: now[path].add(line))
        inherited("REACH", str(self._folder / str(len(self.of))))
        sys.settrace(trace)
        threading.settrace(trace)
        began = time.perf_counter()
        yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        self.seconds[item.nodeid] = round(time.perf_counter() - began, 3)
        for file in self._folder.glob(f"{len(self.of)}.*"):
            self._sizes[file.name] = file.stat().st_size
        self.of[item.nodeid] = now

    def add_processes(self) -> None:
        """Add what processes reached to the test that started them; to later ones too where they lived on."""
        tests = list(self.of.values())
        for file in self._folder.iterdir():
            first = int(file.name.split(".")[0])
            alone = file.stat().st_size == self._sizes.get(file.name)
            for row in file.read_text().splitlines():
                path, line = row.rsplit(":", 1)
                for of in tests[first : first + 1 if alone else None]:
                    of[path].add(int(line))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def reached(tests: list[str], until: float) -> dict[str, Any] | None:
    """For each test the lines it reaches, from the last run where neither its file nor a source changed;
    None where the time was over before every file had been traced.
    """
    sources = {p: digest(p) for p in sorted((ROOT / "src/decoupled").rglob("*.py"))}
    found: dict[str, Any] = {}
    imports: set[str] = set()
    for file in (p for name in tests for p in _files(ROOT / "tests" / name)):
        kept = BUILD / f"{file.stem}.json"
        of = json.loads(kept.read_text()) if kept.exists() else None
        fresh = (
            of
            and of["test"] == digest(file)
            and all(sources.get(ROOT / path) == was for path, was in of["sources"].items())
        )
        if not fresh:
            if time.monotonic() > until:
                return None
            of = _traced(file, kept)
            seconds = sum(t["seconds"] for t in of["tests"].values())
            sys.stdout.write(f"{seconds:6.1f} s  {len(of['tests']):4} tests of {file.name}\n")
            sys.stdout.flush()
        found.update(of["tests"])
        imports.update(of["imports"])
    for name in sorted(imports):  # once, for every fork
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    return found


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _files(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("test_*.py"))


def _traced(file: Path, kept: Path) -> dict[str, Any]:
    """Run one test file under the tracer, in a process of its own."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        silence()
        with tempfile.TemporaryDirectory() as folder:
            plugin = Reach(Path(folder))
            pytest.main([*QUIET, str(file)], [plugin])
            plugin.add_processes()
        touched = {path for of in plugin.of.values() for path in of}
        modules = [(name, getattr(of, "__file__", "") or "") for name, of in sys.modules.items()]
        kept.write_text(
            json.dumps(
                {
                    "test": digest(file),
                    "imports": [name for name, where in modules if "site-packages" in where],
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


def inherited(name: str, value: str) -> None:
    """Set a variable for `child/sitecustomize.py` in the processes that are started from now on."""
    os.environ[name] = value
    paths = [str(Path(__file__).parent / "child"), os.environ.get("PYTHONPATH", "")]
    if not paths[1].startswith(paths[0]):
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)


def silence() -> None:
    """A forked process says nothing."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
