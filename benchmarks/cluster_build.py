"""Building with several workers: the same bytes although workers are killed, and the rate of each.

    python benchmarks/cluster_build.py kill --passages 100000 --json benchmarks/results/cluster_kill.json
    python benchmarks/cluster_build.py rate --passages 3072 --json benchmarks/results/cluster_rate.json

`kill` builds twice with a thin random model: in one process, and with two actors of a local Ray cluster, one
of which is killed twice; then it compares every record. `rate` builds with the bundled model in one process
of one thread and with one worker of one thread, in turn, and counts the passages of each processor second.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import psutil
import torch

from bench_report import machine_now, table, thin_minilm, write_report
from decoupled.index.index import Added, Index
from decoupled.model.folder import starter_model
from decoupled.model.tokens import Passage
from decoupled.search.starter import sample_passages
from decoupled.serve.cluster.ray import connected
from decoupled.serve.cluster.workers import Actors, Processes

COLUMNS = ["id", "window", "start", "digest", "title", "body", "meta", "offsets", "vector"]
CHUNK = 2000


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description="Building with several workers.")
    parser.add_argument("what", choices=("kill", "rate"))
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--words", type=int, default=12, help="words of a passage, for kill")
    parser.add_argument("--workers", type=int, default=2, help="for kill")
    parser.add_argument("--rounds", type=int, default=3, help="for rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder for the indexes; default a temporary one")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        results = {"kill": kill, "rate": rate}[args.what](args, Path(scratch))
    write_report(args, results)
    print(machine_now())
    print(table(["", "value"], [[name, str(value)] for name, value in results.items()]))


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


if __name__ == "__main__":
    main()
