"""Small results of every kind, as the commands write them, for tests of the report."""

from __future__ import annotations

import json
from pathlib import Path

from commands import jsonl
from decoupled.lab.bench.results import Results, compare, key_of


def sweep_lines(task: str = "squad", *, trained: bool = False) -> list[dict]:
    """What `decoupled sweep` writes, in small."""
    return [
        {
            "kind": "sweep",
            "model": "models/joint",
            "data": ["dev.json"],
            "training": {"name": "deformer"} if trained else None,
            "command": "decoupled sweep models/joint",
            "task": task,
            "split": k,
            "layers": 4,
            "trained": trained and k > 0,
            "metric": "f1",
            "score": score,
            "agreement": 1 - k / 10,
            "tokens": {"query": 12, "passage": 150},
            "flops": {"speedup": 1.0 + k, "published_speedup": 1.0 + 0.8 * k},
            "latency_ms": {"joint": {"median": 100.0}, "split": {"median": 90.0 - 20 * k}}
            if k
            else {"joint": {"median": 100.0}},
            "candidates": 20,
            "device": "cpu",
            "threads": 1,
        }
        for k, score in enumerate((80.0, 79.9, 78.9, 70.0, 30.0))
    ]


LAYERS = {
    "kind": "layers",
    "model": "models/joint",
    "task": "squad",
    "command": "decoupled layers models/joint",
    "layers": 2,
    "pairs": 10,
    "passages": 2,
    "variance": [0.0, 0.1, 0.2],
    "crossing_query": [0.5, 0.5],
    "crossing_passage": [0.1, 0.1],
    "distances": {"k=1, as split": {"split": 1, "query": [0, 0.1, 0.2], "passage": [0, 0.2, 0.3]}},
    "suggestion": {"split": 1, "remaining": [1.0, 0.5, 0.0]},
}


def bench_results() -> dict:
    """What `bench` writes of two contenders, by its own code."""
    results = Results(None, {"cells": {}, "ceiling": {"fp32": 100.0}})
    results.describe("quick", {"cores": 2}, device="cpu", threads=2)
    for name, times in (
        ("CrossEncoder torch", [40.0, 44.0]),
        ("decoupled torch exact", [4.0, 4.0]),
    ):
        cell = {"p50_ms": times[0], "p95_ms": times[1], "times_ms": times}
        results.put(key_of("MiniLM-L6", 100, name), cell)
    return {**results.data, "rows": compare(results)}


def smaller_model(name: str, score: float, ms: float, split: int = 0) -> dict:
    """A line of what `shrink_speed.py` writes."""
    return {
        "name": name,
        "score": score,
        "spread": 0.1,
        "seeds": 3,
        "split": split,
        "weight_bytes": int(1e6 * ms),
        "online_32": {"p50_ms": ms},
    }


SMALLER = {
    "kind": "smaller",
    "dataset": "squad",
    "metric": "f1",
    "command": "python benchmarks/shrink_speed.py",
    "models": [
        smaller_model("joint", 83.0, 90.0),
        smaller_model("joint-share", 60.0, 95.0),
        {**smaller_model("split-int8", 81.0, 20.0, split=3), "openvino_online_32": {"p50_ms": 9}},
    ],
}


def result(name: str, value: float, **run: object) -> dict:
    """One line of `suite.py`."""
    return {
        "name": name,
        "test": {"fp": {"f1": value, "exact": value - 9}},
        "run": {"name": name, "dataset": "squad", **run},
        "command": "python examples/experiments/suite.py --preset squad",
    }


def sample_results(folder: Path) -> Path:
    """A folder with one result of each kind, and two files that are none."""
    folder.mkdir()
    jsonl(folder / "sweep.jsonl", sweep_lines())
    plain = {"variant": "", "curve": "distilled"}
    runs = [
        result("squad-joint", 83.0, split=0, variant="joint", curve="joint"),
        *(result(f"squad-k{k}", 84.0 - k * k / 4, split=k, **plain) for k in (1, 2, 4)),
        *(result(f"squad-k3-s{s}", 80.0 + s, split=3, seed=s, **plain) for s in (0, 1)),
        result("squad-k3-none", 78.0, split=3, variant="none"),
        result("squad-k3-kd", 79.0, split=3, variant="kd"),
        result("squad-k3-last", 78.5, split=3, variant="last"),
        result("untrained", 60.0, split=2, variant="untrained", curve="untrained", train=False),
    ]
    projected = result(
        "squad-k3-p96", 79.0, split=3, projection=96, variant="p96", curve="projection"
    )
    projected["test"] = {
        c: {"f1": v, "exact": 1} for c, v in (("fp", 79), ("int8", 78.9), ("int4", 7))
    }
    text = json.dumps({"command": "train", "runs": [*runs, projected]})
    (folder / "train.json").write_text(text)
    (folder / "layers.json").write_text(json.dumps(LAYERS))
    (folder / "smaller.json").write_text(json.dumps(SMALLER))
    (folder / "bench.json").write_text(json.dumps(bench_results()))
    (folder / "other.json").write_text('{"x": 1}')
    (folder / "note.txt").write_text("no result")
    return folder
