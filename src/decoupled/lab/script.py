"""What scripts of benchmarks and experiments share: their options, and the JSON that they leave."""

import argparse
import json
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

from decoupled.lab.bench.report import commit, machine


def options(doc: str, *what: str, **defaults: Any) -> argparse.Namespace:
    """The command line: a choice of `what` to run, and options by their default, or by their type alone.

    Every script takes --json, the file for its results, and --work, a folder for what it builds.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if what:
        parser.add_argument("what", choices=what)
    for name, default in {**defaults, "work": Path, "json": Path}.items():
        flag, many = f"--{name.replace('_', '-')}", isinstance(default, list)
        first = default[0] if many else default
        more: dict[str, Any] = {"nargs": "+"} if many else {}
        if first is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(first, type):
            more |= {"action": "extend"} if many else {}
            parser.add_argument(flag, type=first, **more)
        else:
            parser.add_argument(flag, type=type(first), default=default, **more)
    return parser.parse_args()


def write_report(args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Print the results, and write them with what is needed to repeat them where --json says."""
    sys.stdout.write(json.dumps(results, indent=1) + "\n")
    if args.json is None:
        return
    listed = {
        d.name: d.version for d in distributions() if d.name in ("numpy", "pylance", "pyarrow")
    }
    report = {
        "command": typed(),
        "seed": getattr(args, "seed", 0),
        "commit": commit(),
        "machine": {**machine(), "torch_threads": torch.get_num_threads(), **listed},
        **results,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def typed() -> str:
    """The command without the folders of whoever ran it, and without where its results went."""
    shown, rest = ["python"], iter(sys.argv)
    for argument in rest:
        if argument in ("--work", "--json"):
            next(rest, None)
        elif Path(argument).is_absolute():
            name = Path(argument).name
            shown.append(name if name == "data" else f"data/{name}")
        else:
            shown.append(argument)
    return " ".join(shown)
