"""Gather the results of suites into one file of `benchmarks/results`, or the studies of their joint models.

    python benchmarks/train_collect.py OUT/results.jsonl [MORE…] --json train_pairs.json --only 'mnli-*'
    python benchmarks/train_collect.py OUT/results.jsonl --layers FOLDER --only mnli-joint --only mrpc-joint

A run that is in several files is taken from the last one; `--add` keeps what the file to write already holds.
Specs are left out unless `--specs` asks for them (`shrink_speed.py` needs them), once for all seeds of a run;
`--brief` leaves recipes out.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def main() -> None:
    """Read, choose, write."""
    args = arguments()
    runs = chosen(args.results, args.only)
    if args.layers:
        for run in runs:
            study = run["layers"]
            write(args.layers / f"layers_{study['task']}.json", study)
        return
    old = json.loads(args.json.read_text(encoding="utf-8")) if args.add else {"runs": []}
    specs = dict(old.get("specs", {}))
    if args.specs:
        specs |= {group(run): run["spec"] for run in runs}
    by_name = {run["name"]: run for run in old["runs"]} | {
        run["name"]: slim(run, brief=args.brief) for run in runs
    }
    commands = {re.sub(r" --only \S+", "", run["command"]) for run in runs}
    commands |= {*old.get("commands", ()), *([old["command"]] if "command" in old else ())}
    found: Result = {"kind": args.kind, "commands": sorted(commands)}
    found["device"] = args.device
    found["runs"] = [by_name[name] for name in sorted(by_name)]
    if specs:
        found["specs"] = specs
    write(args.json, found)
    print(f"{args.json}: {len(found['runs'])} runs, {len(runs)} of them from here")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", help="results.jsonl of train_suite.py")
    parser.add_argument("--only", action="append", default=[], help="names or patterns of runs")
    parser.add_argument("--device", default="NVIDIA H200, shared by all runs of a suite")
    parser.add_argument("--kind", choices=("train", "shrink"), default="train")
    parser.add_argument("--specs", action="store_true")
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--add", action="store_true")
    into = parser.add_mutually_exclusive_group(required=True)
    into.add_argument("--json", type=Path)
    into.add_argument("--layers", type=Path, metavar="FOLDER")
    return parser.parse_args()


def chosen(files: list[Path], patterns: list[str]) -> list[Result]:
    """The finished runs that a pattern fits, the last of each name."""
    found: dict[str, Result] = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            run = json.loads(line)
            wanted = any(fnmatch.fnmatch(run["name"], pattern) for pattern in patterns or ["*"])
            if wanted and "failed" not in run:
                found[run["name"]] = run
    return list(found.values())


def group(run: Result) -> str:
    """The name without the seed."""
    return re.sub(r"-s\d+$", "", run["name"])


def slim(run: Result, *, brief: bool) -> Result:
    """A result without what is kept elsewhere or follows from the rest."""
    out = {"spec", "layers"} | ({"recipe", "losses", "command"} if brief else set())
    return {name: value for name, value in run.items() if name not in out}


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


if __name__ == "__main__":
    main()
