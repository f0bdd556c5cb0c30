"""A local Ray cluster: builds that lose workers, the rate of a worker, and serving from shards.

    python benchmarks/cluster.py kill --passages 100000 --json benchmarks/results/cluster_kill.json
    python benchmarks/cluster.py rate --passages 3072 --json benchmarks/results/cluster_rate.json
    python benchmarks/cluster.py serve --passages 800 --json benchmarks/results/cluster_serve.json
    python benchmarks/cluster.py plan --json benchmarks/results/plan_32m.json

`kill` builds with a thin random model in one process, and with two actors, one of which is killed twice, and
compares every record. `rate` builds with the bundled model in one process and with one worker, in turn, one
thread each, and counts the passages of each processor second. `serve` sends every query to one engine and to
four shards; a shard is killed, and queries go on until it is back. The overhead of a query is its time less
that of its slowest shard. `plan` is `decoupled lab plan` for Wikipedia, on the rates of this machine.
"""

import argparse
import hashlib
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import lance
import psutil
import torch

from bench_report import percentiles, thin_minilm
from decoupled import Added, Engine, Hits, Index, Passage, plan
from decoupled.index.workers import Processes
from decoupled.lab.script import options, write_report
from decoupled.model.folder import starter_model
from decoupled.search.starter import sample_passages, sample_questions
from decoupled.serve.cluster.engine import Shard, ShardedEngine
from decoupled.serve.cluster.ray import connected
from decoupled.serve.cluster.shards import Layout, deployed
from decoupled.serve.cluster.workers import Actors

COLUMNS = ["id", "window", "start", "digest", "title", "body", "meta", "offsets", "vector"]
CHUNK = 2000
WARM = 512
CODEC = "project:96+int8"
CLOSE = 1e-4
"""Logits nearer than this are a tie: the last bits depend on which passages share a batch."""


def main() -> None:
    """Run what the command line names."""
    build = {"passages": 100_000, "words": 12, "workers": 2, "rounds": 3}
    asked = {"queries": 500, "shards": 4, "candidates": 10, "limit_s": 2.0}
    args = options(__doc__, "kill", "rate", "serve", "plan", **build, **asked, seed=0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        work = {"kill": kill, "rate": rate, "serve": serve, "plan": wikipedia}[args.what]
        write_report(args, work(args, Path(scratch)))


def ours(word: str) -> list[psutil.Process]:
    """The processes below this one that have a word in their command."""
    children = psutil.Process().children(recursive=True)
    return [p for p in children if any(word in part for part in p.cmdline())]


def wikipedia(*_: Any) -> dict[str, Any]:
    """What 32 million passages would need."""
    return plan("32M", codec=CODEC, rate=10, latency=300, workers=8).to_json()


# Kill ---------------------------------------------------------------------------------------------


def kill(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Both builds, and how many records of them differ."""
    thin_minilm(args.seed, threads=1).save(work / "model")
    one, two = work / "one.idx", work / "two.idx"
    started = time.perf_counter()
    with Index.create(one, work / "model", codec=CODEC) as index:
        alone = index.add(pieces(args.passages, args.words))
        records = index.info()["records"]
    middle = time.perf_counter()
    marks, killed = [args.passages // 4, args.passages // 2], []

    def note(done: Added) -> None:
        if marks and done.added >= marks[0]:
            marks.pop(0)
            os.kill(ours("ray::Encoder")[0].pid, signal.SIGKILL)
            killed.append({"added": done.added, "second": round(done.seconds, 1)})

    with (
        connected("local", cpus=args.workers) as ray,
        Index.create(two, work / "model", codec=CODEC) as index,
        Actors(ray, two, args.workers) as workers,
    ):
        given = pieces(args.passages, args.words)
        together = index.add(given, progress=note, workers=workers)
    seconds = time.perf_counter() - middle
    digests = [dict(digests_of(path)) for path in (one, two)]
    keys = digests[0].keys() | digests[1].keys()
    return {
        "passages": args.passages,
        "records": records,
        "workers": args.workers,
        "seconds_one_process": round(middle - started, 1),
        "seconds_cluster": round(seconds, 1),
        "added": [alone.added, together.added],
        "killed": killed,
        "compared": len(keys),
        "different": sum(digests[0].get(key) != digests[1].get(key) for key in keys),
    }


def pieces(count: int, words: int) -> Iterator[Passage]:
    """Short runs of words of the sample passages, each once, again and again under new ids."""
    sample = [(p.title, p.text.split()) for p in sample_passages()]
    runs = (
        (title, " ".join(text[start : start + words]))
        for title, text in itertools.cycle(sample)
        for start in range(0, len(text), words)
    )
    for (title, piece), n in zip(runs, range(count), strict=False):
        yield Passage(id=f"p{n}", text=piece, title=title, meta={"n": n})


def digests_of(path: Path) -> Iterator[tuple[str, bytes]]:
    """A digest of every column of a record and the bytes of its states, by id."""
    table = lance.dataset(str(path / "passages.lance"))
    rows = table.to_table(columns=COLUMNS, filter="window >= 0").sort_by("id")
    with Index.open(path) as index:
        view = index.store.snapshot
        for start in range(0, len(rows), CHUNK):
            here = rows.slice(start, CHUNK).to_pylist()
            assert not any(r["window"] for r in here), "these passages have one window each"
            found = view.states(view.locate([r["id"] for r in here]))
            for row, states in zip(here, found, strict=True):
                content = repr(list(row.values())).encode() + states.tobytes()
                yield row["id"], hashlib.sha256(content).digest()


# Rate ---------------------------------------------------------------------------------------------


def rate(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Passages per processor second of a process that does everything, and of a worker."""
    chosen = zip(range(args.passages), itertools.cycle(sample_passages()), strict=False)
    chosen = [Passage(id=f"p{n}", text=p.text, title=p.title) for n, p in chosen]
    alone, each = [], []
    for number in range(args.rounds):
        with Index.create(work / f"one{number}.idx", starter_model()) as index:
            alone.append(per_second(index, chosen, psutil.Process))
        path = work / f"two{number}.idx"
        with Index.create(path, starter_model()) as index, Processes(path, 1, threads=1) as hands:
            each.append(per_second(index, chosen, lambda: ours("spawn_main")[0], workers=hands))
    return {
        "passages": args.passages - WARM,
        "one_process_per_cpu_second": [round(r, 1) for r in alone],
        "worker_per_cpu_second": [round(r, 1) for r in each],
        "best_ratio": round(max(each) / max(alone), 3),
        "median_ratio": round(median(b / a for a, b in zip(alone, each, strict=True)), 3),
    }


def per_second(
    index: Index, passages: list[Passage], process: Callable[[], psutil.Process], **options: Any
) -> float:
    """Passages per processor second of a process, the first ones aside."""
    index.add(passages[:WARM], **options)
    worker = process()
    before = sum(worker.cpu_times()[:2])
    index.add(passages[WARM:], **options)
    return (len(passages) - WARM) / (sum(worker.cpu_times()[:2]) - before)


# Serve --------------------------------------------------------------------------------------------


class Watched:
    """A shard whose own times are noted."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.spent = shard, [0.0]

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
    # The sample questions, and then words of passages, until there are enough.
    runs = (p.text for p in pieces(args.queries, 8))
    asked = [*(q.question for q in sample_questions()), *runs][: args.queries]
    with deployed(path, Layout(shards=args.shards), seconds=30) as fleet:
        alone = Engine(path)
        return {**compare(args, alone, fleet, asked), **lose(args, alone, fleet, asked[0])}


def compare(
    args: argparse.Namespace, alone: Engine, fleet: ShardedEngine, asked: list[str]
) -> dict[str, Any]:
    """Rankings that differ, and the milliseconds of each query."""
    watched = [Watched(shard) for shard in fleet.shards]
    fleet = ShardedEngine(watched, fleet.index, seconds=30)
    one, many, overhead, different = [], [], [], 0
    for query in asked:
        expected = alone.search(query, candidates=args.candidates, raw=True)
        found = fleet.search(query, candidates=args.candidates, raw=True)
        different += not same(found, expected)
        one.append(expected.timing.total_ms)
        many.append(found.timing.total_ms)
        overhead.append(found.timing.total_ms - max(s.spent[-1] for s in watched))
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
    """All of them, with the same ids in the same order, but for ties."""
    scores = {h.id: h.score for h in expected}
    return not found.partial and all(
        f.id == e.id
        or max(abs(f.score - e.score), abs(f.score - scores.get(f.id, e.score))) < CLOSE
        for f, e in zip(found, expected, strict=True)
    )


def lose(
    args: argparse.Namespace, alone: Engine, fleet: ShardedEngine, query: str
) -> dict[str, Any]:
    """Kill a shard, and ask until it is back."""
    fleet = ShardedEngine(fleet.shards, fleet.index, seconds=args.limit_s)
    os.kill(next(p for p in ours("Server") if "ray::" in str(p.cmdline())).pid, signal.SIGKILL)
    killed = started = time.monotonic()
    partial: list[float] = []
    while (hits := fleet.search(query, candidates=args.candidates, raw=True)).partial:
        partial.append(time.monotonic() - started)
        started = time.monotonic()
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
