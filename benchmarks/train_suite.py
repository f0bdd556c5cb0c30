"""Run training experiments, several at once on one GPU, each in a process of its own; gather their results.

    python benchmarks/train_suite.py --preset squad --data DATA --base MINILM --out OUT
    python benchmarks/train_suite.py --collect OUT/results.jsonl --json train_pairs.json --only 'mnli-*'
    python benchmarks/train_suite.py --collect OUT/results.jsonl --layers FOLDER --only squad-joint

A run starts when the runs that it names as start and teacher are over and a worker is free. Finished runs are
kept in the cache and never repeated, and have a line in OUT/results.jsonl. `--smoke` runs every path of a
preset on a tiny model on the CPU. `--collect` writes a file of `benchmarks/results`, or the studies of joint
models; a later file replaces what an earlier one says.
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

from task_data import prepared
from train_presets import PRESETS, Run, preset, read_run
from train_worker import Place, execute, limit_of

Result = dict[str, Any]


class Worker:
    """A process that does one run after the other; what it imported, read and compiled stays."""

    def __init__(self, *, heavy: bool) -> None:
        self.heavy = heavy
        """Is it for runs that fill a good part of a GPU and its memory by themselves?"""
        self.process: subprocess.Popen[bytes] | None = None
        self.run: Run | None = None
        self.over: Path | None = None

    def start(self, run: Run, place: Place) -> None:
        """Give it a run."""
        folder = place.folder(run.name)
        folder.mkdir(parents=True, exist_ok=True)
        self.run, self.over = run, folder / "over"
        self.over.unlink(missing_ok=True)
        order = {"run": asdict(run), "place": asdict(place)}
        (folder / "run.json").write_text(json.dumps(order, default=str), encoding="utf-8")
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--worker"],
                stdin=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"},
            )
        assert self.process.stdin is not None
        self.process.stdin.write(f"{folder / 'run.json'}\n".encode())
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
    workers: list[Worker]
    failed: set[str] = field(default_factory=set)

    def working(self) -> list[Run]:
        """The runs that are being done."""
        return [worker.run for worker in self.workers if worker.run is not None]

    def run(self) -> None:
        """Until nothing waits."""
        try:
            while self.waiting or self.working():
                self.step()
                time.sleep(0.1)
        finally:
            for worker in self.workers:
                worker.stop()

    def step(self) -> None:
        """Collect what ended and start what can start."""
        for worker in self.workers:
            if worker.run is not None and worker.ended():
                name, worker.run = worker.run.name, None
                self.collect(name)
                if name in self.failed:
                    worker.stop()  # whatever broke the run may have broken the process
        for worker in self.workers:
            if worker.run is None and (run := self.next(worker.heavy)):
                self.waiting.remove(run)
                worker.start(run, self.place)
                say(f"start {run.name}")

    def next(self, heavy: bool) -> Run | None:
        """The first run of a worker's kind that can start."""
        unfinished = {run.name for run in (*self.waiting, *self.working())}
        for run in list(self.waiting):
            if self.failed & run.needs():
                self.waiting.remove(run)
                self.failed.add(run.name)
                say(f"skip {run.name}: what it needs failed")
            elif run.heavy == heavy and not unfinished & run.needs():
                return run
        return None

    def collect(self, name: str) -> None:
        """Write the result of a run that ended, or the end of its output."""
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


def say(text: str) -> None:
    """One line of progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def record(place: Place, result: Result) -> None:
    """Append a result to the file that goes home."""
    place.out.mkdir(parents=True, exist_ok=True)
    with (place.out / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def work() -> None:
    """A worker: does the runs whose files are named on its input, until it ends."""
    torch._dynamo.config.recompile_limit = 256  # many models of many shapes, one after the other
    torch._dynamo.config.accumulated_recompile_limit = 4096
    for line in sys.stdin:
        path = Path(line.strip())
        order = json.loads(path.read_text(encoding="utf-8"))
        smoke = order["place"].pop("smoke")
        place = Place(**{n: Path(v) for n, v in order["place"].items()}, smoke=smoke)
        with (path.parent / "output.txt").open("w", encoding="utf-8", buffering=1) as output:
            try:
                execute(
                    read_run(order["run"]),
                    place,
                    progress=lambda seen, file=output: print(json.dumps(seen), file=file),
                )
            except Exception:
                traceback.print_exc(file=output)
        gc.collect()
        torch.cuda.empty_cache()
        (path.parent / "over").touch()


def prepare(runs: list[Run], place: Place) -> None:
    """Tokenise every dataset once, before any worker needs it."""
    for name in dict.fromkeys(run.dataset for run in runs):
        for part in ("train", "test"):
            started, limit = time.perf_counter(), limit_of(name, place)
            folders = {"data": place.data, "base": place.base, "kept": place.cache}
            made = prepared(name, part, **folders, limit=limit)
            say(f"{name} {part}: {len(made)} pairs, {time.perf_counter() - started:.1f} s")


def smoke(runs: list[Run], place: Place) -> None:
    """Every run of a preset in small: the first in a process of its own, the others here."""
    suite = Suite(place, runs[:1], [Worker(heavy=runs[0].heavy)])
    suite.run()
    if suite.failed:
        raise SystemExit(f"{runs[0].name} failed in its own process")
    torch.set_num_threads(1)
    for run in runs[1:]:
        result = execute(run, place)
        record(place, result)
        say(f"{run.name} {result['wall_seconds']} s {result['losses']} {result['test']}")


# What to run --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", action="append", choices=PRESETS, default=[])
    parser.add_argument("--runs", type=Path, help="JSON list of runs")
    parser.add_argument("--only", action="append", default=[], help="names or patterns of runs")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--base", type=Path, help="folder of the base encoder")
    parser.add_argument("--cache", type=Path, default=Path("build/train"))
    parser.add_argument("--out", type=Path, default=Path("build/results"))
    parser.add_argument("--heavy", type=int, default=5, help="workers for runs on long texts")
    parser.add_argument("--light", type=int, default=8, help="workers for the others")
    parser.add_argument("--have", type=Path, action="append", default=[], help="results to spare")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--prepare", action="store_true", help="only tokenise")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--collect", type=Path, nargs="+", metavar="RESULTS")
    parser.add_argument("--json", type=Path, help="file that --collect writes")
    parser.add_argument("--layers", type=Path, help="folder that --collect writes studies to")
    parser.add_argument("--add", action="store_true", help="keep what the file already holds")
    parser.add_argument("--kind", choices=("train", "shrink"), default="train")
    parser.add_argument("--specs", action="store_true", help="with the specs of the models")
    parser.add_argument("--brief", action="store_true", help="without recipes")
    parser.add_argument("--device", default="NVIDIA H200, shared by all runs of a suite")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Run]:
    """The runs asked for and not had, each name once, and what they need."""
    listed = [run for name in options.preset for run in preset(name)]
    if options.runs:
        listed += [read_run(row) for row in json.loads(options.runs.read_text(encoding="utf-8"))]
    runs: dict[str, Run] = {}
    for run in listed:
        runs.setdefault(run.name, run)
    wanted = {n for pattern in options.only or ["*"] for n in fnmatch.filter(runs, pattern)}
    for path in options.have:
        wanted -= {run["name"] for run in results_of(path) if "failed" not in run}
    while more := {need for n in wanted for need in runs[n].needs() if need in runs} - wanted:
        wanted |= more
    return [run for name, run in runs.items() if name in wanted]


def results_of(path: Path) -> list[Result]:
    """The runs of a results.jsonl, or of what `--collect` made of it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)["runs"]


# Results ------------------------------------------------------------------------------------------


def collect(options: argparse.Namespace) -> None:
    """Gather the finished runs that a pattern fits into one file, or their studies into a folder."""
    runs = {
        run["name"]: run
        for path in options.collect
        for run in results_of(path)
        if "failed" not in run
        and any(fnmatch.fnmatch(run["name"], pattern) for pattern in options.only or ["*"])
    }
    if options.layers:
        for run in runs.values():
            write(options.layers / f"layers_{run['layers']['task']}.json", run["layers"])
        return
    old: Result = {"runs": []}
    if options.add:
        old = json.loads(options.json.read_text(encoding="utf-8"))
    out = {"spec", "layers", *(("recipe", "losses", "command") if options.brief else ())}
    by_name = {run["name"]: run for run in old["runs"]} | {
        name: {k: v for k, v in run.items() if k not in out} for name, run in runs.items()
    }
    commands = {run["command"] for run in runs.values()}
    found: Result = {
        "kind": options.kind,
        "commands": sorted({*commands, *old.get("commands", ())}),
    }
    found |= {"device": options.device, "runs": [by_name[name] for name in sorted(by_name)]}
    specs = dict(old.get("specs", {}))
    if options.specs:  # once for all seeds of a run
        specs |= {
            name.removesuffix(f"-s{run['run']['seed']}"): run["spec"] for name, run in runs.items()
        }
    write(options.json, found | ({"specs": specs} if specs else {}))
    say(f"{options.json}: {len(found['runs'])} runs, {len(runs)} of them from here")


def write(path: Path, data: Result) -> None:
    """JSON with a line for each run and each spec, so that changes can be read."""
    parts = []
    for name, value in data.items():
        text = json.dumps(value)
        if name == "runs":
            text = "[\n" + ",\n".join(f"  {json.dumps(run)}" for run in value) + "\n ]"
        elif name == "specs":
            lines = (f"  {json.dumps(key)}: {json.dumps(spec)}" for key, spec in value.items())
            text = "{\n" + ",\n".join(lines) + "\n }"
        parts.append(f" {json.dumps(name)}: {text}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def main() -> None:
    """Read the command line and run."""
    options = arguments()
    if options.worker:
        work()
        return
    if options.collect:
        collect(options)
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
    if options.smoke:
        smoke(runs, place)
    elif not options.prepare:
        waiting = [run for run in runs if place.result(run.name) is None]
        workers = [Worker(heavy=n < options.heavy) for n in range(options.heavy + options.light)]
        Suite(place, waiting, workers).run()


if __name__ == "__main__":
    main()
