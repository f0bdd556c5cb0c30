"""Time the embedded store on synthetic passages: append, search, and the states of 100 random rows.

    python benchmarks/store_read.py --passages 100000 --json results.json

States are random bytes, text has a Zipf vocabulary, vectors lie near a 32-dimensional subspace. Latencies
are warm; the page cache of a machine with less memory than the index will give other numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from decoupled.index.record import Record
from decoupled.index.store.lance import LanceStore

PART = 4096
VOCABULARY = 30_000


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Makes records that look like encoded passages."""

    tokens: int
    token_bytes: int
    width: int

    def records(self, first: int, count: int) -> list[Record]:
        """Passages `first` to `first + count`, the same for the same numbers."""
        rng = np.random.default_rng(first)
        ranks = 1.0 / np.arange(1, VOCABULARY + 1)
        words = rng.choice(VOCABULARY, (count, self.tokens * 3 // 4), p=ranks / ranks.sum())
        basis = np.random.default_rng(0).standard_normal((32, self.width))
        vectors = rng.standard_normal((count, 32)) @ basis
        vectors += 0.1 * rng.standard_normal(vectors.shape)
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        states = rng.integers(0, 256, (count, self.tokens, self.token_bytes), np.uint8)
        starts = np.arange(self.tokens, dtype=np.int32) * 5
        offsets = np.stack([starts, starts + rng.integers(1, 5, self.tokens, np.int32)], 1)
        return [
            Record(
                id=f"p{first + i}",
                text=" ".join(f"w{w}" for w in words[i]),
                title=f"Passage {first + i}",
                meta={"lang": "en" if i % 10 else "de", "year": 1950 + i % 75},
                offsets=offsets,
                states=states[i],
                vector=vectors[i] if self.width else None,
            )
            for i in range(count)
        ]


def build(store: LanceStore, corpus: Corpus, passages: int) -> dict[str, float]:
    """Append everything, then index and compact; seconds of each."""
    spent = {"make": 0.0, "append": 0.0}
    for first in range(0, passages, PART):
        begun = time.perf_counter()
        records = corpus.records(first, min(PART, passages - first))
        made = time.perf_counter()
        store.append(records, part=str(first))
        spent["make"] += made - begun
        spent["append"] += time.perf_counter() - made
    begun = time.perf_counter()
    store.optimise()
    spent["optimise"] = time.perf_counter() - begun
    begun = time.perf_counter()
    store.compact(older_than=timedelta(0))
    spent["compact"] = time.perf_counter() - begun
    return spent


def percentiles(work: Callable[[int], Any], repeats: int) -> dict[str, float]:
    """Milliseconds of `work(i)`, p50 and p95, after a few calls that do not count."""
    for i in range(5):
        work(-1 - i)
    times = []
    for i in range(repeats):
        begun = time.perf_counter()
        work(i)
        times.append((time.perf_counter() - begun) * 1e3)
    return {
        "p50_ms": round(float(np.percentile(times, 50)), 3),
        "p95_ms": round(float(np.percentile(times, 95)), 3),
    }


def measure(path: Path, corpus: Corpus, passages: int, repeats: int) -> dict[str, Any]:
    """Latencies of a store that is opened anew."""
    begun = time.perf_counter()
    view = LanceStore.open(path).snapshot
    opened = (time.perf_counter() - begun) * 1e3
    rng = np.random.default_rng(1)
    every = view.locate([f"p{i}" for i in range(passages)])
    sample = rng.choice(every, (repeats + 5, min(100, passages)))
    queries = [" ".join(f"w{w}" for w in rng.integers(20, 3000, 5)) for _ in range(repeats + 5)]
    probes = [r.vector for r in corpus.records(0, min(PART, passages))]
    found: dict[str, Any] = {"open_ms": round(opened, 3)}
    found["states_100"] = percentiles(lambda i: view.states(sample[i]), repeats)
    found["texts_10"] = percentiles(lambda i: view.texts(sample[i][:10]), repeats)
    found["locate_100"] = percentiles(
        lambda i: view.locate([f"p{n}" for n in range(100 * (i % 7), 100 * (i % 7) + 100)]), repeats
    )
    found["lexical_100"] = percentiles(lambda i: view.lexical(queries[i], 100), repeats)
    where = {"lang": "de", "year": {"gte": 2000}}
    found["lexical_100_filtered"] = percentiles(
        lambda i: view.lexical(queries[i], 100, where), repeats
    )
    if corpus.width:
        found["dense_100"] = percentiles(lambda i: view.dense(probes[i], 100), repeats)
    return found


def disk(path: Path, state_bytes: int, text_bytes: int) -> dict[str, Any]:
    """Bytes by folder, and what is neither states nor text, against the states."""
    sizes: dict[str, int] = {}
    for top, _, names in os.walk(path):
        folder = "/".join(Path(top).relative_to(path).parts[:2]) or "."
        sizes[folder] = sizes.get(folder, 0) + sum(Path(top, n).stat().st_size for n in names)
    total = sum(sizes.values())
    return {
        "bytes": total,
        "state_bytes": state_bytes,
        "text_bytes": text_bytes,
        "overhead_without_text": round((total - state_bytes - text_bytes) / state_bytes, 4),
        "folders": sizes,
    }


def main() -> None:
    """Build a store in a temporary folder, measure it, print and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--token-bytes", type=int, default=98)
    parser.add_argument("--width", type=int, default=384, help="of dense vectors; 0 for none")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="where to build; default a temporary folder")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()

    corpus = Corpus(tokens=args.tokens, token_bytes=args.token_bytes, width=args.width)
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    try:
        path = folder / "bench.idx"
        with LanceStore.create(
            path, token_bytes=args.token_bytes, width=args.width or None
        ) as store:
            spent = build(store, corpus, args.passages)
        state_bytes = args.passages * args.tokens * args.token_bytes
        sample = corpus.records(0, min(PART, args.passages))
        text_bytes = sum(len(r.text) for r in sample) * args.passages // len(sample)
        results = {
            "passages": args.passages,
            "seconds": {name: round(value, 2) for name, value in spent.items()},
            "append_passages_per_s": round(args.passages / spent["append"]),
            "append_mb_per_s": round(state_bytes / 1e6 / spent["append"]),
            "disk": disk(path, state_bytes, text_bytes),
            **measure(path, corpus, args.passages, args.repeats),
        }
    finally:
        shutil.rmtree(folder)
    print(json.dumps(results, indent=2))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
