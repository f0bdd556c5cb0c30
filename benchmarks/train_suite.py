"""Run training experiments, several at once on one GPU, each in a process of its own.

    python benchmarks/train_suite.py --preset squad --data DATA --base MINILM --out OUT --workers 12

A run starts when the runs that it names as start, teacher or source of its recipe are over, there are seats
for it (a run on long texts takes two), and it should end before the deadline. Finished runs are kept in the
cache and never repeated. `--smoke` runs every path of a preset on a tiny model on the CPU;
`--prepare` only tokenises; `--join PARTS MODEL` makes a model folder of weights that came home in parts.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from decoupled.train.tasks import TASKS
from shrink_presets import shrink
from task_data import DATASETS, prepared
from train_presets import PRESETS, Run
from train_worker import SMOKE_PAIRS, Place, execute
from weight_parts import load_parts

ALL = {**PRESETS, "shrink": shrink}
LONG = 2
"""Seats that a run on long texts takes; the others take one."""


@dataclass
class Suite:
    """Runs that wait, runs that work, and what is known of the rest."""

    place: Place
    waiting: list[Run]
    workers: int
    deadline: float
    names: list[str] = field(default_factory=list)
    working: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    started: float = field(default_factory=time.perf_counter)

    def over(self, name: str) -> bool:
        """Is a run, or every run that a pattern fits, finished or failed?"""
        pattern = name.removeprefix("best:")
        open_runs = {run.name for run in self.waiting} | set(self.working)
        return not any(fnmatch.fnmatch(other, pattern) for other in open_runs)

    def hopeless(self, run: Run) -> bool:
        """Does the run need one that failed?"""
        for name in run.needs():
            pattern = name.removeprefix("best:")
            fits = [n for n in self.names if fnmatch.fnmatch(n, pattern)]
            if fits and all(n in self.failed for n in fits):
                return True
        return False

    def step(self) -> None:
        """Collect what ended and start what can start."""
        for name, process in list(self.working.items()):
            if process.poll() is not None:
                del self.working[name]
                self.collect(name, process.returncode)
        left = self.started + self.deadline - time.perf_counter()
        for run in list(self.waiting):
            if self.taken() + seats(run) > self.workers or run.seconds() > left:
                continue
            if not all(self.over(name) for name in run.needs()):
                continue
            self.waiting.remove(run)
            if self.hopeless(run):
                self.failed.add(run.name)
                say(f"skip {run.name}: what it needs failed")
            else:
                self.start(run)

    def taken(self) -> int:
        """Seats of the runs that work."""
        return sum(seats(self.runs[name]) for name in self.working)

    def start(self, run: Run) -> None:
        """Start the process of a run."""
        self.runs[run.name] = run
        folder = self.place.folder(run.name)
        folder.mkdir(parents=True, exist_ok=True)
        spec = folder / "run.json"
        spec.write_text(json.dumps(describe(run, self.place)), encoding="utf-8")
        environment = {**os.environ, "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
        with (folder / "output.txt").open("wb") as output:
            self.working[run.name] = subprocess.Popen(
                [sys.executable, __file__, "--worker", str(spec)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        say(f"start {run.name}")

    def collect(self, name: str, code: int) -> None:
        """Write the result of a run that ended, or the end of its output."""
        result = self.place.result(name)
        if code or result is None:
            self.failed.add(name)
            output = (self.place.folder(name) / "output.txt").read_text(errors="replace")
            result = {"name": name, "failed": code, "output": output[-2000:]}
            say(f"FAILED {name} ({code})\n{output[-1500:]}")
        else:
            say(f"done {name} {json.dumps(result['test'])} {result['wall_seconds']} s")
        record(self.place, result)

    def run(self) -> None:
        """Until nothing waits or the deadline passes."""
        while self.waiting or self.working:
            if time.perf_counter() - self.started > self.deadline:
                for name, process in self.working.items():
                    process.terminate()
                    say(f"stopped {name} at the deadline")
                for process in self.working.values():
                    process.wait()
                say(f"deadline: {len(self.waiting)} runs never started")
                return
            self.step()
            if not self.working and self.waiting:
                say(f"too late to start {len(self.waiting)} runs")
                return
            time.sleep(0.2)


def seats(run: Run) -> int:
    """Seats that a run takes among the workers."""
    return LONG if run.long else 1


def say(text: str) -> None:
    """One line of progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def record(place: Place, result: dict[str, Any]) -> None:
    """Append a result to the file that goes home."""
    place.out.mkdir(parents=True, exist_ok=True)
    with (place.out / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def describe(run: Run, place: Place) -> dict[str, Any]:
    """A run and its folders as JSON, for its process."""
    folders = {name: str(value) for name, value in asdict(place).items() if name != "smoke"}
    return {"run": asdict(run), "place": folders, "smoke": place.smoke}


def worker(path: Path) -> None:
    """The process of one run."""
    told = json.loads(path.read_text(encoding="utf-8"))
    place = Place(**{n: Path(v) for n, v in told["place"].items()}, smoke=told["smoke"])
    run = read_run(told["run"])
    execute(run, place, progress=lambda line: print(json.dumps(line), flush=True))


def read_run(data: dict[str, Any]) -> Run:
    """A run from JSON."""
    lists = {"bits": tuple(data.get("bits", (None,))), "shrink": tuple(data.get("shrink", ()))}
    return Run(**{**data, **lists})


def prepare(runs: list[Run], place: Place) -> None:
    """Tokenise every dataset once, before any worker needs it."""
    for name in dict.fromkeys(run.dataset for run in runs):
        options = TASKS[DATASETS[name].task].options
        limit = SMOKE_PAIRS * options if place.smoke else None
        for part in ("train", "test"):
            started = time.perf_counter()
            made = prepared(
                name, part, data=place.data, base=place.base, kept=place.cache, limit=limit
            )
            say(f"{name} {part}: {len(made)} pairs, {time.perf_counter() - started:.1f} s")


def smoke(runs: list[Run], place: Place) -> None:
    """Every run of a preset in small: the first in a process of its own, the others here."""
    suite = Suite(place, runs[:1], workers=LONG, deadline=1e9, names=[runs[0].name])
    suite.run()
    if suite.failed:
        raise SystemExit(f"{runs[0].name} failed in its own process")
    torch.set_num_threads(1)
    for run in runs[1:]:
        started = time.perf_counter()
        result = execute(run, place)
        record(place, result)
        seconds = time.perf_counter() - started
        say(f"{run.name} {seconds:.1f} s {json.dumps(result['losses'])} {result['test']}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", action="append", choices=sorted(ALL), default=[])
    parser.add_argument("--runs", type=Path, help="JSON list of runs")
    parser.add_argument("--only", action="append", default=[], help="names or patterns of runs")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--base", type=Path, help="folder of the base encoder")
    parser.add_argument("--cache", type=Path, default=Path("build/train"))
    parser.add_argument("--out", type=Path, default=Path("build/results"))
    parser.add_argument("--workers", type=int, default=12, help="seats")
    parser.add_argument("--deadline", type=float, default=1e9, metavar="SECONDS")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--join", type=Path, nargs=2, metavar=("PARTS", "MODEL"))
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Run]:
    """The runs asked for, each name once; with `--only` also what those need."""
    listed = [run for name in options.preset for run in ALL[name]()]
    if options.runs:
        listed += [read_run(row) for row in json.loads(options.runs.read_text(encoding="utf-8"))]
    runs = {run.name: run for run in reversed(listed)}
    runs = {run.name: runs[run.name] for run in listed}
    if not options.only:
        return list(runs.values())
    wanted = {n for n in runs if any(fnmatch.fnmatch(n, pattern) for pattern in options.only)}
    while True:
        needs = [need.removeprefix("best:") for n in wanted for need in runs[n].needs()]
        more = {n for n in runs if any(fnmatch.fnmatch(n, need) for need in needs)} - wanted
        if not more:
            return [run for name, run in runs.items() if name in wanted]
        wanted |= more


def main() -> None:
    """Read the command line and run."""
    options = arguments()
    if options.worker:
        worker(options.worker)
        return
    if options.join:
        load_parts(options.join[0]).save(options.join[1])
        return
    runs = chosen(options)
    if options.eager:
        runs = [replace(run, set={**run.set, "watch.compile": False}) for run in runs]
    named = " ".join(f"--preset {name}" for name in options.preset) or "--runs RUNS"
    os.environ["TRAIN_SUITE_COMMAND"] = f"python benchmarks/train_suite.py {named}"
    if options.list:
        for run in runs:
            print(json.dumps(asdict(run)))
        return
    cache = options.cache / "smoke" if options.smoke else options.cache
    place = Place(
        data=options.data, base=options.base, cache=cache, out=options.out, smoke=options.smoke
    )
    prepare(runs, place)
    if options.prepare:
        return
    if options.smoke:
        smoke(runs, place)
        return
    waiting = [run for run in runs if place.result(run.name) is None]
    Suite(place, waiting, options.workers, options.deadline, names=[run.name for run in runs]).run()


if __name__ == "__main__":
    main()
