"""The race itself: every contender in its own process, one query each in turn, results written as they come.

Turns make the noise of a machine fall on all alike; ratios are medians over turns. A cell is one contender on
one shape at one number of passages. A file of results that already holds a cell spares it.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from decoupled.errors import DecoupledError, InputError
from decoupled.lab.bench import contenders
from decoupled.lab.bench.report import Results, commit, compare, key_of, machine
from decoupled.lab.bench.shapes import PASSAGE_TOKENS, shape_named

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Race:
    """What to race."""

    shapes: tuple[str, ...]
    tops: tuple[int, ...]
    names: tuple[str, ...] = ()
    turns: int = 7
    seconds: float = 60.0
    """A cell that would take longer than this for all its turns gets fewer of them, at least one."""
    patience: float = 180.0
    """A cell whose one query would take longer than this is left out."""
    threads: int = 0
    device: str = "cpu"


_SHAPES, _TOPS = ("MiniLM-L6", "MiniLM-L12", "BERT-base", "BERT-large"), (20, 100, 1000)
PRESETS = {
    "quick": Race(shapes=_SHAPES[:1], tops=_TOPS[:2], turns=5, seconds=4.0, patience=30.0),
    "cpu": Race(shapes=_SHAPES, tops=_TOPS, turns=9),
    "gpu": Race(shapes=_SHAPES, tops=_TOPS, turns=30, device="cuda"),
}


def race_of(
    preset: str,
    *,
    shapes: Sequence[str] | None = None,
    tops: Sequence[int] | None = None,
    only: Sequence[str] | None = None,
    turns: int = 0,
    threads: int = 0,
    patience: float = 0.0,
) -> Race:
    """A preset with fields replaced where a value is given; `only` are parts of contenders' names."""
    if preset not in PRESETS:
        raise InputError(f"preset {preset!r} is unknown; choose one of {', '.join(PRESETS)}")
    race = PRESETS[preset]
    names = contenders.contenders(race.device, quick=preset == "quick")
    if only:
        every = names
        names = [n for n in every if any(part.lower() in n.lower() for part in only)]
        if not names:
            raise InputError(
                f"no contender has {' or '.join(only)} in its name; there are {'; '.join(every)}"
            )
    for shape in shapes or ():
        shape_named(shape)
    return replace(
        race,
        names=tuple(names),
        shapes=tuple(shapes or race.shapes),
        tops=tuple(sorted(tops or race.tops)),
        turns=turns or race.turns,
        threads=threads or os.cpu_count() or 1,
        patience=patience or race.patience,
    )


def bench(
    preset: str = "quick",
    *,
    output: Path | None = None,
    work: Path | None = None,
    progress: Progress | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Race, and return what the file holds: cells, the rows that compare them, machine.

    `output` is written as the race goes, and one that is there is gone on with. `work` keeps models and
    indexes for the next race. `changes` replace fields of the preset: shapes, tops, only, turns, threads,
    patience.
    """
    race = race_of(preset, **changes)
    check_device(race.device)
    results = Results.open(output)
    setting = {"device": race.device, "threads": race.threads, "commit": commit()}
    results.describe(preset, machine(), **setting)
    with tempfile.TemporaryDirectory() if work is None else nullcontext(str(work)) as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        run(race, results, Path(folder), progress or (lambda text: None))
    results.data["rows"] = compare(results)
    results.save()
    return results.data


def check_device(device: str) -> None:
    """Fail before anything is opened where the preset needs a GPU that is not there."""
    if device == "cpu":
        return
    try:
        import torch
    except ImportError:
        raise DecoupledError("the preset gpu needs torch and a GPU; use the preset cpu") from None
    if not torch.cuda.is_available():
        raise DecoupledError("torch sees no GPU here; use the preset cpu")


class Worker:
    """A contender's process."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "decoupled.lab.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Send an order and wait for the answer; `failed` says why there is none."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            return {"failed": f"its process ended with status {self._process.wait()}"}
        return dict(json.loads(answer))

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


Workers = dict[str, tuple[Worker, dict[str, Any]]]
"""The process of each contender, and what opening it told."""


def run(race: Race, results: Results, work: Path, progress: Progress) -> None:
    """Fill every cell of the race that the results lack."""
    for shape in race.shapes:
        unfinished = [
            name
            for name in race.names
            if not all(results.has(key_of(shape, top, name)) for top in race.tops)
        ]
        if unfinished:
            with _opened(shape, unfinished, race, results, work, progress) as workers:
                for top in race.tops:
                    _turns(shape, top, workers, race, results, progress)


@contextmanager
def _opened(
    shape: str, names: Sequence[str], race: Race, results: Results, work: Path, progress: Progress
) -> Iterator[Workers]:
    """The workers of those that can race; why the others cannot is written into their cells."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(race.threads)}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    order = {"shape": shape, "count": max(race.tops), "work": str(work)}
    order |= {"threads": race.threads, "device": race.device}
    with ExitStack() as stack:
        workers: Workers = {}
        for name in names:
            failure = contenders.missing(name)
            if failure is None:
                progress(f"{shape}: opening {name}")
                if race.device == "cpu":
                    # Converting and indexing leave memory behind that a user's process never has.
                    with closing(Worker(environment)) as first:
                        first.ask("open", contender=name, **order)
                worker = stack.enter_context(closing(Worker(environment)))
                facts = worker.ask("open", contender=name, **order)
                failure = facts.get("failed")
                workers[name] = worker, facts
            if failure is not None:
                if name in workers:
                    workers.pop(name)[0].close()
                for top in race.tops:
                    results.skip(key_of(shape, top, name), failure)
        yield workers


def _turns(
    shape: str, top: int, workers: Workers, race: Race, results: Results, progress: Progress
) -> None:
    """All contenders on one shape and one number of passages, a query each in turn."""
    racing: dict[str, dict[str, Any]] = {}
    for name, (worker, facts) in workers.items():
        key = key_of(shape, top, name)
        if results.has(key):
            continue
        expected = facts.get("rate_s", 0.0) * top
        if expected > race.patience:
            reason = f"one query would take about {expected:.0f} s; raise --patience"
            results.skip(key, reason)
            continue
        progress(f"{shape}, {top} passages: {name}")
        first = worker.ask("first", count=top)
        if "failed" in first:
            results.skip(key, first["failed"])
            continue
        facts["rate_s"] = first["first_ms"] / 1e3 / top
        racing[name] = {**facts, **first}
    turns = {
        name: max(1, min(race.turns, int(race.seconds / (facts["first_ms"] / 1e3))))
        for name, facts in racing.items()
    }
    times: dict[str, list[float]] = {name: [] for name in racing}
    for turn in range(max(turns.values(), default=0)):
        for name in (name for name in racing if turn < turns[name]):
            answer = workers[name][0].ask("once", number=turn + 1, count=top)
            if "failed" not in answer:
                times[name].append(answer["ms"])
                # So that a race that is cut off leaves what it knew.
                cell = _cell(top, times[name], racing[name], {})
                results.put(key_of(shape, top, name), {**cell, "unfinished": True})
    for name, facts in racing.items():
        stages = workers[name][0].ask("stages", count=top)
        results.put(key_of(shape, top, name), _cell(top, times[name], facts, stages))


def _cell(
    top: int, times: list[float], facts: dict[str, Any], stages: dict[str, Any]
) -> dict[str, Any]:
    if not times:
        return {"skipped": "every query failed"}
    p50 = float(np.percentile(times, 50))
    cell: dict[str, Any] = {
        "p50_ms": round(p50, 3),
        "p95_ms": round(float(np.percentile(times, 95)), 3),
        "turns": len(times),
        "times_ms": [round(t, 3) for t in times],
        "pairs_per_s": round(top / p50 * 1e3, 1),
        **{k: v for k, v in facts.items() if k != "rate_s"},
    }
    if "bytes_per_token" in cell:
        cell["bytes_read"] = top * PASSAGE_TOKENS * cell["bytes_per_token"]
    if stages and "failed" not in stages:
        cell["stages_ms"] = stages
    return cell
