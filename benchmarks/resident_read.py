"""States in memory against the same states from the page cache, and against decoding them.

    python benchmarks/resident_read.py --passages 5000 --json results/resident.json

Synthetic passages of 150 tokens stored as `project:96+int8`; random rows are read by each in turn. What
decoding takes is what keeping them decoded would spare, at sixteen times the memory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench_report import percentiles, table, write_report
from decoupled.index.store.lance import LanceStore
from decoupled.index.store.state_cache import StateCache
from decoupled.model.codec import fit_codec
from decoupled.model.states import States
from store_read import PART, Corpus

WIDTH, TOKENS, CODEC = 384, 150, "project:96+int8"
SCALE = np.frombuffer(np.float16(0.02).tobytes(), np.uint8)
"""Random bytes would make a scale that is no number."""


def main() -> None:
    """Build, warm, read in turns, report."""
    args = arguments()
    draw = np.random.default_rng(0)
    sample = draw.standard_normal((4096, WIDTH)).astype(np.float32)
    codec = fit_codec(CODEC, States(sample, np.array([len(sample)])))
    corpus = Corpus(tokens=TOKENS, token_bytes=codec.bytes_per_token, width=8)
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        store = LanceStore.create(Path(folder) / "s", token_bytes=codec.bytes_per_token, width=8)
        for first in range(0, args.passages, PART):
            records = corpus.records(first, min(PART, args.passages - first))
            for record in records:
                record.states[:, -2:] = SCALE
            store.append(records, part=str(first))
        view, resident = store.snapshot, StateCache("16GB")
        usage = resident.warm(view)
        rows = view.rows()
        found: dict[str, Any] = {}
        for count in args.counts:
            times: dict[str, list[float]] = {"store": [], "memory": [], "decode": []}
            for _ in range(args.repeats):
                chosen = draw.choice(rows, count, replace=False)
                for name, read in (
                    ("store", lambda: view.states(chosen)),  # noqa: B023
                    ("memory", lambda: resident.states(view, chosen)),  # noqa: B023
                ):
                    begun = time.perf_counter()
                    encoded = read()
                    times[name].append((time.perf_counter() - begun) * 1e3)
                begun = time.perf_counter()
                codec.decode(encoded)
                times["decode"].append((time.perf_counter() - begun) * 1e3)
            found[str(count)] = {name: percentiles(values) for name, values in times.items()}
        store.close()
    write_report(args, {"passages": args.passages, "usage": usage.to_json(), "reads": found})
    lines = [
        [count, *(f"{reads[n]['p50_ms']:.2f} / {reads[n]['p95_ms']:.2f}" for n in reads)]
        for count, reads in found.items()
    ]
    print(f"milliseconds, p50 / p95; {usage.bytes / usage.records:.0f} bytes a passage in memory")
    print(table(["rows", "store, page cache", "memory", "decode"], lines))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=5000)
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
