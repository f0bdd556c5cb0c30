"""Small results of every kind, as the commands write them, for tests of the report."""

from __future__ import annotations

import json
from pathlib import Path

from commands import jsonl
from decoupled.lab.bench.report import Results, compare, key_of


def sweep_lines(task: str = "squad", *, trained: bool = False) -> list[dict]:
    """What `decoupled lab sweep` writes, in small."""
    return [
        {
            "kind": "sweep",
            "model": "models/joint",
            "data": ["dev.json"],
            "training": {"name": "deformer"} if trained else None,
            "command": "decoupled lab sweep models/joint",
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
    "command": "decoupled lab layers models/joint",
    "layers": 2,
    "pairs": 10,
    "passages": 2,
    "variance": [0.0, 0.1, 0.2],
    "crossing_query": [0.5, 0.5],
    "crossing_passage": [0.1, 0.1],
    "distances": {"k=1, as split": {"split": 1, "query": [0, 0.1, 0.2], "passage": [0, 0.2, 0.3]}},
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


def sample_results(folder: Path) -> Path:
    """A folder with one result of each kind, and two files that are none."""
    folder.mkdir()
    jsonl(folder / "sweep.jsonl", sweep_lines())
    (folder / "layers.json").write_text(json.dumps(LAYERS))
    (folder / "bench.json").write_text(json.dumps(bench_results()))
    (folder / "other.json").write_text('{"x": 1}')
    (folder / "note.txt").write_text("no result")
    return folder
