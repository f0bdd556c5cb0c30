"""Run training experiments, several at once on one GPU, each in a process of its own; gather their results.

    python examples/experiments/suite.py --preset squad --data DATA --base MINILM --out OUT
    python examples/experiments/suite.py --collect OUT/results.jsonl --json train_pairs.json --only 'mnli-*'
    python examples/experiments/suite.py --collect OUT/results.jsonl --layers FOLDER --only squad-joint

A run starts when the runs that it names as start and teacher are over and a worker is free; --heavy of them
are for long texts, --light for others. Finished runs are kept in the cache and never repeated, and have a
line in OUT/results.jsonl. `--smoke` runs every path of a preset on a tiny model on the CPU. `--collect`
writes a file of `benchmarks/results` (with specs and without recipes for `--kind shrink`), or the studies
of joint models; a later file replaces what an earlier one says.
"""

import argparse
import fnmatch
import gc
import json
import multiprocessing
import os
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from presets import DATASETS, Place, Run, examples, preset
from worker import execute

from decoupled.lab.script import options

Result = dict[str, Any]


def main() -> None:
    """Read the command line and run."""
    given = {"preset": [str], "only": [str], "base": Path, "smoke": False, "heavy": 5, "light": 8}
    folders = {"data": Path("data"), "cache": Path("build/train"), "out": Path("build/results")}
    gather = {"collect": [Path], "layers": Path, "kind": "train"}
    args = options(__doc__, **given, **folders, **gather)
    if args.collect:
        collect(args)
        return
    runs = chosen(args.preset, args.only or ["*"])
    cache = args.cache / "smoke" if args.smoke else args.cache
    command = f"python examples/experiments/suite.py --preset {' --preset '.join(args.preset)}"
    folders = {"data": args.data, "base": args.base, "cache": cache}
    place = Place(**folders, command=command, smoke=args.smoke)
    for name in dict.fromkeys(run.dataset for run in runs):  # before any worker needs it
        if "train" not in DATASETS[name]:  # texts alone
            continue
        sizes = {part: len(examples(place, name, part)) for part in ("train", "test")}
        say(f"{name}: {sizes} pairs")
    args.out.mkdir(parents=True, exist_ok=True)
    suite([run for run in runs if place.result(run.name) is None], place, args)


def chosen(presets: list[str], patterns: list[str]) -> list[Run]:
    """The runs that a pattern fits, each name once, and what they need."""
    runs: dict[str, Run] = {}
    for run in (run for name in presets for run in preset(name)):
        runs.setdefault(run.name, run)
    wanted = {n for pattern in patterns for n in fnmatch.filter(runs, pattern)}
    while more := {need for n in wanted for need in runs[n].needs() if need in runs} - wanted:
        wanted |= more
    return [run for name, run in runs.items() if name in wanted]


def suite(waiting: list[Run], place: Place, args: argparse.Namespace) -> None:
    """Do all runs, in workers that keep what they imported, read and compiled."""
    os.environ |= {"OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
    spawn = multiprocessing.get_context("spawn")
    counts = (1, 1) if args.smoke else (args.light, args.heavy)
    light, heavy = (ProcessPoolExecutor(max(1, count), mp_context=spawn) for count in counts)
    working: dict[Future[Result], Run] = {}
    failed: set[str] = set()
    with light, heavy, (args.out / "results.jsonl").open("a", encoding="utf-8", buffering=1) as out:
        while waiting or working:
            unfinished = {run.name for run in (*waiting, *working.values())}
            for run in list(waiting):
                if failed & run.needs():
                    waiting.remove(run)
                    failed.add(run.name)
                    say(f"skip {run.name}: what it needs failed")
                elif not unfinished & run.needs():
                    waiting.remove(run)
                    working[(heavy if run.heavy else light).submit(work, run, place)] = run
            for future in wait(working, return_when=FIRST_COMPLETED).done:
                name = working.pop(future).name
                if error := future.exception():
                    failed.add(name)
                    output = "".join(traceback.format_exception(error))[-2000:]
                    result: Result = {"name": name, "failed": True, "output": output}
                    say(f"FAILED {name}\n{output}")
                else:
                    result = future.result()
                    say(f"done {name} {json.dumps(result['test'])} {result['wall_seconds']} s")
                out.write(json.dumps(result) + "\n")
    if failed:
        raise SystemExit(f"failed: {', '.join(sorted(failed))}")


def work(run: Run, place: Place) -> Result:
    """A worker does a run; its folder says how far it is."""
    torch._dynamo.config.recompile_limit = 256  # many models of many shapes, one after the other
    torch._dynamo.config.accumulated_recompile_limit = 4096
    folder = place.folder(run.name)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output.txt").open("w", encoding="utf-8", buffering=1) as output:
        result = execute(run, place, lambda seen: print(json.dumps(seen), file=output))
    gc.collect()
    torch.cuda.empty_cache()
    return result


def say(text: str) -> None:
    """One line of progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


# Results ------------------------------------------------------------------------------------------


def collect(args: argparse.Namespace) -> None:
    """Gather the finished runs that a pattern fits into one file, or their studies into a folder."""
    runs = {
        run["name"]: run
        for path in args.collect
        for run in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if "failed" not in run
        and any(fnmatch.fnmatch(run["name"], pattern) for pattern in args.only or ["*"])
    }
    if args.layers:
        for run in runs.values():
            study = {**run["layers"], "commit": run["commit"]}
            write(args.layers / f"layers_{study['task']}.json", study)
        return
    shrink = args.kind == "shrink"
    out = {"spec", "layers", *(("recipe", "losses", "command") if shrink else ())}
    found: Result = {
        "kind": args.kind,
        "commands": sorted({run["command"] for run in runs.values()}),
        "device": "NVIDIA H200, shared by all runs of a suite",
        "runs": [{k: v for k, v in runs[name].items() if k not in out} for name in sorted(runs)],
    }
    if shrink:  # once for all seeds of a run
        found["specs"] = {
            name.removesuffix(f"-s{run['run']['seed']}"): run["spec"] for name, run in runs.items()
        }
    write(args.json, found)
    say(f"{args.json}: {len(runs)} runs")


def write(path: Path, data: Result) -> None:
    """JSON with a line for each run and each spec, so that changes can be read."""
    parts = {name: json.dumps(value) for name, value in data.items()}
    if "runs" in data:
        rows = (f"  {json.dumps(run)}" for run in data["runs"])
        parts["runs"] = "[\n" + ",\n".join(rows) + "\n ]"
    if "specs" in data:
        rows = (f"  {json.dumps(key)}: {json.dumps(spec)}" for key, spec in data["specs"].items())
        parts["specs"] = "{\n" + ",\n".join(rows) + "\n }"
    lines = (f" {json.dumps(name)}: {text}" for name, text in parts.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
