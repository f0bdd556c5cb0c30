"""Run training experiments, several at once on one GPU, each in a process of its own.

    python benchmarks/train_suite.py --preset squad --data DATA --base MINILM --out OUT

A run starts when the runs that it names as start, teacher or source of its recipe are over, a worker is free,
and it should end before the deadline. Finished runs are kept in the
cache and never repeated. `--smoke` runs every path of a preset on a tiny model on the CPU;
`--prepare` only tokenises; `--join PARTS MODEL` makes a model folder of weights that came home in parts.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import os
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from decoupled.train.data.tasks import TASKS
from shrink_presets import shrink
from task_data import DATASETS, prepared
from train_presets import PRESETS, Run
from train_worker import SMOKE_PAIRS, Place, execute
from weight_parts import load_parts

ALL = {**PRESETS, "shrink": shrink}


class Worker:
    """A process that does one run after the other; what it imported, read and compiled stays."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.run: Run | None = None
        self.over: Path | None = None

    def start(self, run: Run, place: Place) -> None:
        """Give it a run."""
        folder = place.folder(run.name)
        folder.mkdir(parents=True, exist_ok=True)
        self.run, self.over = run, folder / "over"
        self.over.unlink(missing_ok=True)
        spec = folder / "run.json"
        spec.write_text(json.dumps(describe(run, place)), encoding="utf-8")
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--worker"],
                stdin=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"},
            )
        assert self.process.stdin is not None
        self.process.stdin.write(f"{spec}\n".encode())
        self.process.stdin.flush()

    def ended(self) -> bool:
        """Is its run over, well or not?"""
        assert self.process is not None and self.over is not None
        return self.over.exists() or self.process.poll() is not None

    def stop(self) -> None:
        """End the process, whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class Suite:
    """Runs that wait, workers, and what is known of the rest."""

    place: Place
    waiting: list[Run]
    heavy: int
    """Workers for runs that fill a good part of a GPU and its memory by themselves."""
    light: int
    """Workers for the others."""
    deadline: float
    names: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.workers = [Worker() for _ in range(self.heavy + self.light)]

    def working(self) -> list[Run]:
        """The runs that are being done."""
        return [worker.run for worker in self.workers if worker.run is not None]

    def over(self, name: str) -> bool:
        """Is a run, or every run that a pattern fits, finished or failed?"""
        pattern = name.removeprefix("best:")
        open_runs = {run.name for run in (*self.waiting, *self.working())}
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
        for worker in self.workers:
            if worker.run is not None and worker.ended():
                name, worker.run = worker.run.name, None
                if not self.collect(name):
                    worker.stop()  # whatever broke the run may have broken the process
        for number, worker in enumerate(self.workers):
            if worker.run is None and (run := self.next(heavy=number < self.heavy)):
                self.waiting.remove(run)
                worker.start(run, self.place)
                say(f"start {run.name}")

    def next(self, *, heavy: bool) -> Run | None:
        """The first run of a worker's kind that can start and should end in time."""
        left = self.started + self.deadline - time.perf_counter()
        ready = []
        for run in list(self.waiting):
            if not all(self.over(name) for name in run.needs()):
                continue
            if self.hopeless(run):
                self.waiting.remove(run)
                self.failed.add(run.name)
                say(f"skip {run.name}: what it needs failed")
            elif run.seconds() <= left:
                ready.append(run)
        return next((run for run in ready if run.heavy == heavy), None)

    def collect(self, name: str) -> bool:
        """Write the result of a run that ended, or the end of its output; did it end well?"""
        result = self.place.result(name)
        if result is None:
            self.failed.add(name)
            path = self.place.folder(name) / "output.txt"
            output = path.read_text(errors="replace") if path.exists() else "the worker died"
            result = {"name": name, "failed": True, "output": output[-2000:]}
            say(f"FAILED {name}\n{output[-1500:]}")
        else:
            say(f"done {name} {json.dumps(result['test'])} {result['wall_seconds']} s")
        record(self.place, result)
        return name not in self.failed

    def run(self) -> None:
        """Until nothing waits or the deadline passes."""
        try:
            while self.waiting or self.working():
                if time.perf_counter() - self.started > self.deadline:
                    stopped = ", ".join(run.name for run in self.working())
                    say(f"deadline: stopped {stopped}; {len(self.waiting)} runs never started")
                    return
                self.step()
                if self.waiting and not self.working():
                    say(f"too late to start {len(self.waiting)} runs")
                    return
                time.sleep(0.1)
        finally:
            for worker in self.workers:
                worker.stop()


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


def work() -> None:
    """A worker: does the runs whose files are named on its input, until it ends."""
    torch._dynamo.config.recompile_limit = 256  # many models of many shapes, one after the other
    torch._dynamo.config.accumulated_recompile_limit = 4096
    for line in sys.stdin:
        path = Path(line.strip())
        told = json.loads(path.read_text(encoding="utf-8"))
        place = Place(**{n: Path(v) for n, v in told["place"].items()}, smoke=told["smoke"])
        with (path.parent / "output.txt").open("w", encoding="utf-8", buffering=1) as output:
            try:
                execute(
                    read_run(told["run"]),
                    place,
                    progress=lambda seen, file=output: print(json.dumps(seen), file=file),
                )
            except Exception:
                traceback.print_exc(file=output)
        gc.collect()
        torch.cuda.empty_cache()
        (path.parent / "over").touch()


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
    suite = Suite(place, runs[:1], heavy=1, light=1, deadline=1e9, names=[runs[0].name])
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
    parser.add_argument("--heavy", type=int, default=5, help="workers for runs on long texts")
    parser.add_argument("--light", type=int, default=8, help="workers for the others")
    parser.add_argument(
        "--have", type=Path, action="append", default=[], help="results of runs not to repeat"
    )
    parser.add_argument("--deadline", type=float, default=1e9, metavar="SECONDS")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--join", type=Path, nargs=2, metavar=("PARTS", "MODEL"))
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Run]:
    """The runs asked for and not had, each name once, and what they need."""
    listed = [run for name in options.preset for run in ALL[name]()]
    if options.runs:
        listed += [read_run(row) for row in json.loads(options.runs.read_text(encoding="utf-8"))]
    runs = {run.name: run for run in reversed(listed)}
    runs = {run.name: runs[run.name] for run in listed}
    patterns = options.only or ["*"]
    wanted = {n for n in runs if any(fnmatch.fnmatch(n, pattern) for pattern in patterns)}
    for path in options.have:
        wanted -= finished(path)
    while True:
        needs = [need.removeprefix("best:") for n in wanted for need in runs[n].needs()]
        more = {n for n in runs if any(fnmatch.fnmatch(n, need) for need in needs)} - wanted
        if not more:
            return [run for name, run in runs.items() if name in wanted]
        wanted |= more


def finished(path: Path) -> set[str]:
    """Names of the runs of a results.jsonl, or of what `train_collect.py` made of it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in text.splitlines()]
    else:
        rows = json.loads(text)["runs"]
    return {row["name"] for row in rows if "failed" not in row}


def main() -> None:
    """Read the command line and run."""
    options = arguments()
    if options.worker:
        work()
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
    names = [run.name for run in runs]
    Suite(place, waiting, options.heavy, options.light, options.deadline, names=names).run()


if __name__ == "__main__":
    main()
