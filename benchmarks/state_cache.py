"""States in memory against the same states from the page cache, and against decoding them.

    python benchmarks/state_cache.py --passages 4000 --repeats 25 --json benchmarks/results/resident.json

Synthetic passages of 150 tokens stored as `project:96+int8`; random rows are read by each in turn. What
decoding takes is what keeping them decoded would spare, at sixteen times the memory.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench_report import options, percentiles, write_report
from decoupled.index.store.lance import LanceStore
from decoupled.index.store.state_cache import StateCache
from decoupled.model.codec import fit_codec
from decoupled.model.states import States
from query_latency import CODEC, TOKENS, Corpus


def main() -> None:
    """Build, warm, read in turns, report."""
    args = options(__doc__, passages=5000, counts=[100, 1000], repeats=40)
    draw = np.random.default_rng(0)
    sample = draw.standard_normal((4096, 384)).astype(np.float32)
    codec = fit_codec(CODEC, States(sample, np.array([len(sample)])))
    size = codec.bytes_per_token
    corpus = Corpus(tokens=TOKENS, token_bytes=size, width=8, scale_at=size - 2)
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(dir=args.work) as folder,
        LanceStore.create(Path(folder) / "s", token_bytes=size, width=8) as store,
    ):
        corpus.fill(store, args.passages)
        view, cache = store.snapshot, StateCache("16GB")
        usage = cache.warm(view)
        for count in args.counts:
            times: dict[str, list[float]] = {"store": [], "memory": [], "decode": []}
            for _ in range(args.repeats):
                rows = draw.choice(view.rows(), count, replace=False)
                encoded = clocked(times["store"], lambda r=rows: view.states(r))
                clocked(times["memory"], lambda r=rows: cache.states(view, r))
                clocked(times["decode"], lambda e=encoded: codec.decode(e))
            found[str(count)] = {name: percentiles(values) for name, values in times.items()}
    write_report(args, {"passages": args.passages, "usage": usage.to_json(), "reads": found})


def clocked(times: list[float], work: Any) -> Any:
    """What comes of it; its milliseconds are noted."""
    begun = time.perf_counter()
    value = work()
    times.append((time.perf_counter() - begun) * 1e3)
    return value


if __name__ == "__main__":
    main()
