"""A local Ray cluster: builds that lose workers, the rate of a worker, and serving from shards.

    python benchmarks/cluster.py kill --passages 100000 --json benchmarks/results/cluster_kill.json
    python benchmarks/cluster.py rate --passages 3072 --json benchmarks/results/cluster_rate.json
    python benchmarks/cluster.py serve --passages 800 --json benchmarks/results/cluster_serve.json

`kill` builds twice with a thin random model: in one process, and with two actors, one of which is killed
twice; then it compares every record. `rate` builds with the bundled model in one process of one thread and
with one worker of one thread, in turn, and counts the passages of each processor second. `serve` sends every
query to one engine and to four shards, over sample passages under the bundled model; a shard is killed, and
queries go on until it is back. The overhead of a query is its time less that of its slowest shard.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import psutil
import torch

from bench_report import options, percentiles, thin_minilm, write_report
from decoupled.index.index import Added, Index
from decoupled.model.folder import starter_model
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine
from decoupled.search.results import Hits
from decoupled.search.starter import sample_passages, sample_questions
from decoupled.serve.cluster.engine import Shard, ShardedEngine
from decoupled.serve.cluster.ray import connected
from decoupled.serve.cluster.shards import Layout, deployed
from decoupled.serve.cluster.workers import Actors, Processes

COLUMNS = ["id", "window", "start", "digest", "title", "body", "meta", "offsets", "vector"]
CHUNK = 2000
CLOSE = 1e-4
"""Logits nearer than this are a tie: the last bits depend on which passages share a batch."""


def main() -> None:
    """Run what the command line names."""
    args = options(
        __doc__,
        *("kill", "rate", "serve"),
        passages=100_000,
        words=12,
        workers=2,
        rounds=3,
        queries=500,
        shards=4,
        candidates=10,
        limit_s=2.0,
        seed=0,
    )
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        work = {"kill": kill, "rate": rate, "serve": serve}[args.what]
        write_report(args, work(args, Path(scratch)))


# Kill ---------------------------------------------------------------------------------------------


def kill(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Both builds, and how many records of them differ."""
    thin_minilm(args.seed, threads=1).save(work / "model")
    started = time.perf_counter()
    with Index.create(work / "one.idx", work / "model", codec="project:96+int8") as index:
        alone = index.add(pieces(args.passages, args.words))
        records = index.info()["records"]
    seconds = time.perf_counter() - started
    killed: list[dict[str, float]] = []
    started = time.perf_counter()
    with (
        connected("local", cpus=args.workers) as ray,
        Index.create(work / "two.idx", work / "model", codec="project:96+int8") as index,
        Actors(ray, work / "two.idx", args.workers) as workers,
    ):
        marks = [args.passages // 4, args.passages // 2]

        def note(done: Added) -> None:
            if marks and done.added >= marks[0]:
                marks.pop(0)
                os.kill(encoders()[0].pid, signal.SIGKILL)
                killed.append({"added": done.added, "second": round(done.seconds, 1)})

        together = index.add(pieces(args.passages, args.words), progress=note, workers=workers)
    return {
        "passages": args.passages,
        "records": records,
        "workers": args.workers,
        "seconds_one_process": round(seconds, 1),
        "seconds_cluster": round(time.perf_counter() - started, 1),
        "added": [alone.added, together.added],
        "killed": killed,
        **difference(work / "one.idx", work / "two.idx"),
    }


def pieces(count: int, words: int) -> Iterator[Passage]:
    """Short runs of words of the sample passages, each once, again and again under new ids."""
    number = 0
    while True:
        for passage in sample_passages():
            text = passage.text.split()
            for start in range(0, len(text), words):
                if number == count:
                    return
                piece = " ".join(text[start : start + words])
                yield Passage(id=f"p{number}", text=piece, title=passage.title, meta={"n": number})
                number += 1


def encoders() -> list[psutil.Process]:
    """The workers of this process's own cluster."""
    ours = psutil.Process().children(recursive=True)
    return [p for p in ours if any("ray::Encoder" in word for word in p.cmdline())]


def difference(one: Path, other: Path) -> dict[str, Any]:
    """How many records are in one index alone, or differ in any column or byte of their states."""
    found = [dict(records(path)) for path in (one, other)]
    keys = found[0].keys() | found[1].keys()
    return {
        "compared": len(keys),
        "different": sum(found[0].get(key) != found[1].get(key) for key in keys),
    }


def records(path: Path) -> Iterator[tuple[tuple[str, int], bytes]]:
    """A digest of each record, by id and window."""
    rows = lance.dataset(str(path / "passages.lance")).to_table(
        columns=COLUMNS, filter="window >= 0"
    )
    rows = rows.sort_by([("id", "ascending"), ("window", "ascending")])
    with Index.open(path) as index:
        assert index.store is not None
        view = index.store.snapshot
        for start in range(0, len(rows), CHUNK):
            here = rows.slice(start, CHUNK).to_pylist()
            ids = [r["id"] for r in here if r["window"] == 0]
            assert len(ids) == len(here), "the passages of this benchmark have one window each"
            for row, states in zip(here, view.states(view.locate(ids)), strict=True):
                content = repr(list(row.values())).encode() + states.tobytes()
                yield (row["id"], row["window"]), hashlib.sha256(content).digest()


# Rate ---------------------------------------------------------------------------------------------


def rate(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Passages per processor second of a process that does everything, and of a worker."""
    chosen = list(itertools.islice(itertools.cycle(sample_passages()), args.passages))
    chosen = [Passage(id=f"p{n}", text=p.text, title=p.title) for n, p in enumerate(chosen)]
    alone, each = [], []
    for number in range(args.rounds):
        with Index.create(work / f"one{number}.idx", starter_model()) as index:
            index.add(chosen[:512])
            used = time.process_time()
            index.add(chosen[512:])
            alone.append((args.passages - 512) / (time.process_time() - used))
        path = work / f"two{number}.idx"
        with Index.create(path, starter_model()) as index, Processes(path, 1, threads=1) as hands:
            index.add(chosen[:512], workers=hands)
            (worker,) = (p for p in psutil.Process().children() if "spawn_main" in str(p.cmdline()))
            before = sum(worker.cpu_times()[:2])
            index.add(chosen[512:], workers=hands)
            each.append((args.passages - 512) / (sum(worker.cpu_times()[:2]) - before))
    best = max(alone), max(each)
    return {
        "passages": args.passages - 512,
        "one_process_per_cpu_second": [round(r, 1) for r in alone],
        "worker_per_cpu_second": [round(r, 1) for r in each],
        "best_ratio": round(best[1] / best[0], 3),
        "median_ratio": round(
            sorted(b / a for a, b in zip(alone, each, strict=True))[len(each) // 2], 3
        ),
    }


# Serve --------------------------------------------------------------------------------------------


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


def serve(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Build, deploy, compare, kill."""
    path = work / "sample.idx"
    with Index.create(path, starter_model()) as index:
        index.add(itertools.islice(sample_passages(), args.passages))
    with deployed(path, Layout(shards=args.shards), seconds=30) as fleet:
        return {**compare(args, Engine(path), fleet), **lose(args, Engine(path), fleet)}


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
