"""Serving from shards: the ranking of one process, what the fan-out costs, and the loss of a shard.

    python benchmarks/cluster_serve.py --json benchmarks/results/cluster_serve.json

Sample passages under the bundled model. Every query goes to one engine and to four shards of a local Ray
cluster; a shard is killed, and queries go on until it is back. The overhead of a query is its time less that
of its slowest shard, which the shard takes itself.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from bench_report import machine_now, percentiles, table, write_report
from decoupled.index.index import Index
from decoupled.model.folder import starter_model
from decoupled.search.engine import Engine
from decoupled.search.results import Hits
from decoupled.search.starter import sample_passages, sample_questions
from decoupled.serve.cluster.engine import Shard, ShardedEngine
from decoupled.serve.cluster.shards import Layout, deployed

CLOSE = 1e-4
"""Logits nearer than this are a tie: the last bits depend on which passages share a batch."""


@dataclass
class Watched:
    """A shard whose own times are noted."""

    shard: Shard
    spent: list[float] = field(default_factory=list)

    def send(self, method: str, *args: Any, **options: Any) -> Callable[[float], Any]:
        """Pass the call on, and note what the shard says about its time."""
        sent = self.shard.send(method, *args, **options)

        def wait(seconds: float) -> Any:
            value = sent(seconds)
            self.spent.append(value[0].timing.total_ms)
            return value

        return wait


def main() -> None:
    """Build, deploy, compare, kill."""
    parser = argparse.ArgumentParser(description="Serving from shards.")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--passages", type=int, default=800)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--limit-s", type=float, default=2.0, help="time limit of a query")
    parser.add_argument("--work", type=Path, help="folder for the index; default a temporary one")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        path = Path(scratch) / "sample.idx"
        with Index.create(path, starter_model()) as index:
            index.add(itertools.islice(sample_passages(), args.passages))
        with deployed(path, Layout(shards=args.shards), seconds=30) as fleet:
            results = {**compare(args, Engine(path), fleet), **lose(args, Engine(path), fleet)}
    write_report(args, results)
    print(machine_now())
    print(table(["", "value"], [[name, str(value)] for name, value in results.items()]))


def texts(count: int) -> list[str]:
    """The sample questions, and then first words of passages, until there are enough."""
    asked = [q.question for q in sample_questions()]
    for passage in sample_passages():
        words = passage.text.split()
        asked += [" ".join(words[n : n + 8]) for n in range(0, len(words) - 8, 40)]
    return asked[:count]


def compare(args: argparse.Namespace, alone: Engine, fleet: ShardedEngine) -> dict[str, Any]:
    """Rankings that differ, and the milliseconds of each query."""
    watched = [Watched(shard) for shard in fleet.shards]
    fleet = ShardedEngine(watched, fleet.index, seconds=30)
    one, many, overhead, different = [], [], [], 0
    for query in texts(args.queries):
        expected = alone.search(query, candidates=args.candidates, raw=True)
        for shard in watched:
            shard.spent.clear()
        found = fleet.search(query, candidates=args.candidates, raw=True)
        different += not same(found, expected)
        one.append(expected.timing.total_ms)
        many.append(found.timing.total_ms)
        overhead.append(found.timing.total_ms - max(s.spent[0] for s in watched))
    return {
        "queries": len(one),
        "shards": len(watched),
        "passages": args.passages,
        "candidates": args.candidates,
        "different_rankings": different,
        "one_process": percentiles(one),
        "fleet": percentiles(many),
        "overhead": percentiles(overhead),
    }


def same(found: Hits, expected: Hits) -> bool:
    """The same ids in the same order, but for ties."""
    if [h.id for h in found] == [h.id for h in expected]:
        return True
    scores = {h.id: h.score for h in expected}
    near = all(
        abs(f.score - e.score) < CLOSE and abs(scores.get(f.id, e.score) - f.score) < CLOSE
        for f, e in zip(found, expected, strict=True)
    )
    return near and not found.partial


def lose(args: argparse.Namespace, alone: Engine, fleet: ShardedEngine) -> dict[str, Any]:
    """Kill a shard, and ask until it is back."""
    fleet = ShardedEngine(fleet.shards, fleet.index, seconds=args.limit_s)
    query = texts(1)[0]
    ours = psutil.Process().children(recursive=True)
    servers = [p for p in ours if any("ray::" in w and "Server" in w for w in p.cmdline())]
    os.kill(servers[0].pid, signal.SIGKILL)
    killed = time.monotonic()
    partial: list[float] = []
    while True:
        started = time.monotonic()
        hits = fleet.search(query, candidates=args.candidates, raw=True)
        if not hits.partial:
            break
        partial.append(time.monotonic() - started)
    back = time.monotonic() - killed
    whole = alone.search(query, candidates=args.candidates, raw=True)
    return {
        "limit_s": args.limit_s,
        "partial_answers": len(partial),
        "slowest_partial_s": round(max(partial, default=0.0), 2),
        "whole_again_after_s": round(back, 1),
        "same_after": same(hits, whole),
    }


if __name__ == "__main__":
    main()
