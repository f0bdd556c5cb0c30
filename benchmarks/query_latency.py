"""Latency of a query, and of each of its stages, on indexes of growing size.

    python benchmarks/query_latency.py --sizes 10000 100000 1000000 --json query_latency.json

Records are synthetic and go straight into the store: random states of the starter model's codes, about 110
words of a Zipf vocabulary, unit vectors near a 32-dimensional subspace. A whole query is `search` as it is by
default. Dense recall is against all vectors compared one by one; what a server takes is the resident memory
of `decoupled serve` after some queries. One million passages take 9 GB; those below --work are kept. Sizes
take turns, in several rounds, so that a busy moment of the machine hits all.
"""

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import psutil

from bench_report import bytes_under, clocked, percentiles
from decoupled import Engine, Index
from decoupled.index.encode import encode_texts
from decoupled.index.manifest import save_codec
from decoupled.index.record import Record
from decoupled.index.store.base import Store
from decoupled.lab.script import options, write_report
from decoupled.model.codec import Codec, fit_codec
from decoupled.model.folder import starter_model
from decoupled.runtime import cpu
from decoupled.search.first_stage import FirstStageQuery, retrieve
from decoupled.search.request import FirstStage
from serve_load import Tally, phase, server, wire
from serve_rate import Call

TOKENS = 150
PART = 4096
VOCABULARY = 30_000
CANDIDATES = 100
SCALE = np.frombuffer(np.float16(0.02).tobytes(), np.uint8)
STAGES: tuple[FirstStage, ...] = get_args(FirstStage)


def main() -> None:
    """Build what is lacking, measure in rounds, report, and clear up."""
    sizes = {"sizes": [10_000, 100_000], "rounds": 3, "repeats": 50, "queries": 4}
    args = options(__doc__, **sizes, seed=0)
    cpu.protect()
    with tempfile.TemporaryDirectory() as scratch:
        write_report(args, growth(args, args.work or Path(scratch)))


def growth(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The stages at every size, and how much slower the largest is than the smallest."""
    paths = {size: build(work / f"{size}.idx", size) for size in args.sizes}
    resident = {size: served(path) for size, path in paths.items()}
    readers = {size: Reader(path, size, args.seed) for size, path in paths.items()}
    for _ in range(args.rounds):
        for reader in readers.values():
            reader.stages(args.repeats)
        for reader in readers.values():
            reader.whole(args.queries)
    results = {
        str(size): {**reader.report(), "served_rss_mib": resident[size]}
        for size, reader in readers.items()
    }
    first, last = (results[str(args.sizes[n])] for n in (0, -1))
    ratios = {
        name: round(last[name]["p50_ms"] / value["p50_ms"], 2)
        for name, value in first.items()
        if isinstance(value, dict)
    }
    return {"sizes": results, "growth_p50": ratios}


# Synthetic records --------------------------------------------------------------------------------


def served(path: Path) -> float:
    """MiB of a server after some queries, its cache of texts empty."""
    with server(path) as (pid, port):
        asked = [
            Call("search", wire("/v1/search", {"query": f"w{n} w{n + 7} w99"}), {})
            for n in range(40)
        ]
        asyncio.run(phase(Tally(), port, asked, clients=4, seconds=8))
        return round(psutil.Process(pid).memory_info().rss / 2**20, 1)


def build(path: Path, size: int) -> Path:
    """An index of synthetic records for the starter; one that is there already is taken as it is."""
    if (path / "built").exists():
        return path
    shutil.rmtree(path, ignore_errors=True)
    with Index.create(path, starter_model()) as index:
        texts = [f"passage {n} of a small sample" for n in range(200)]
        ids = [w.ids for group in index.runtime.tokenizer.windows(texts) for w in group]
        fitted = fit_codec(index.spec.codec, encode_texts(index.runtime, "passage", ids).states)
        save_codec(index.location, fitted)
    with Index.open(path, write=True) as index:
        fill(index.store, size, fitted, width=index.spec.vector_width)
        index.store.optimise()
        index.compact(older_than=timedelta(0))
    (path / "built").touch()
    return path


def fill(store: Store, passages: int, codec: Codec, width: int) -> None:
    """Write that many records."""
    for first in range(0, passages, PART):
        made = records(first, min(PART, passages - first), codec, width)
        store.append(made, part=str(first))


def records(first: int, count: int, codec: Codec, width: int) -> list[Record]:
    """Passages `first` to `first + count` that look like encoded ones, the same for the same numbers."""
    rng = np.random.default_rng(first)
    ranks = 1.0 / np.arange(1, VOCABULARY + 1)
    words = rng.choice(VOCABULARY, (count, TOKENS * 3 // 4), p=ranks / ranks.sum())
    basis = np.random.default_rng(0).standard_normal((32, width))
    vectors = rng.standard_normal((count, 32)) @ basis
    vectors += 0.1 * rng.standard_normal(vectors.shape)
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    # Two codes of 4 bits a byte, small ones more frequent, as real ones are: they are stored in less.
    low, high = rng.binomial(15, 0.5, (2, 256, TOKENS, codec.bytes_per_token)).astype(np.uint8)
    states = low | (high << 4)
    # Random bytes would make a scale that is no number.
    states[:, :, codec.layout.scale_at : codec.layout.scale_at + 2] = SCALE
    starts = np.arange(TOKENS, dtype=np.int32) * 5
    offsets = np.stack([starts, starts + rng.integers(1, 5, TOKENS, np.int32)], 1)
    return [
        Record(
            id=f"p{first + i}",
            text=" ".join(f"w{w}" for w in words[i]),
            title=f"Passage {first + i}",
            meta={"lang": "en" if i % 10 else "de", "year": 1950 + i % 75},
            offsets=offsets,
            states=states[i % len(states)],
            vector=vectors[i],
        )
        for i in range(count)
    ]


# Queries ------------------------------------------------------------------------------------------


class Reader:
    """One index, opened for reading, and the times that its stages took."""

    def __init__(self, path: Path, size: int, seed: int) -> None:
        begun = time.perf_counter()
        self.engine = Engine(Index.open(path))
        self.view = self.engine.index.store.snapshot
        self.open_ms = (time.perf_counter() - begun) * 1e3
        self.size, self.bytes = size, bytes_under(path)
        self.rng = np.random.default_rng(seed)
        self.times: dict[str, list[float]] = {}
        self.engine.search(self.query(), first_stage="hybrid")
        for _ in range(10):  # the first queries read what later ones find in memory
            self.engine.candidates(self.query(), first_stage="hybrid")

    def query(self) -> str:
        """Five words that many passages have."""
        return " ".join(f"w{w}" for w in self.rng.integers(20, 3000, 5))

    def clock(self, name: str, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run and note the milliseconds."""
        return clocked(self.times.setdefault(name, []), partial(work, *args, **options))

    def stages(self, repeats: int) -> None:
        """Every stage by itself."""
        for _ in range(repeats):
            ids = [f"p{n}" for n in self.rng.choice(self.size, CANDIDATES, replace=False)]
            rows = self.view.locate(ids)
            self.clock("fetch first touch", self.view.states, rows)
            encoded = self.clock("fetch", self.view.states, rows)
            self.clock("decode", self.engine.index.codec.decode, encoded)
        # Apart from the above: the threads of one library still spin when the next one begins.
        runtime = self.engine.runtime
        for _ in range(repeats):
            query = self.query()
            vector = runtime.encode("query", [runtime.tokenizer.query(query)]).vectors[0]
            for stage in STAGES:
                sought = FirstStageQuery(self.view, query, vector)
                self.clock(stage, retrieve, sought, stage, CANDIDATES)

    def whole(self, repeats: int) -> None:
        """Queries from text to hits, and what each says about its own time."""
        for _ in range(repeats):
            hits = self.clock("search hybrid", self.engine.search, self.query())
            for name in ("retrieve", "fetch", "encode", "cross"):
                spent = self.times.setdefault(f"{name} in hybrid", [])
                spent.append(getattr(hits.timing, f"{name}_ms"))

    def recall(self, queries: int = 5) -> float:
        """Share of the 100 nearest vectors that the dense stage finds."""
        runtime, shares, rows = self.engine.runtime, [], self.view.rows()
        for _ in range(queries):
            text = runtime.tokenizer.query(self.query())
            vector = runtime.encode("query", [text]).vectors[0]
            blocks = (rows[n : n + 50_000] for n in range(0, len(rows), 50_000))
            exact = [self.view.dense(vector, CANDIDATES, rows=block) for block in blocks]
            scores = np.concatenate([found.scores for found in exact])
            best = np.concatenate([found.rows for found in exact])[np.argsort(-scores)[:CANDIDATES]]
            found = self.view.dense(vector, CANDIDATES).rows
            shares.append(len(np.intersect1d(found, best)) / len(best))
        return round(float(np.mean(shares)), 4)

    def report(self) -> dict[str, Any]:
        """Percentiles of everything, and the share of reading and decoding in a query."""
        found: dict[str, Any] = {name: percentiles(values) for name, values in self.times.items()}
        both = np.asarray(self.times["fetch"]) + np.asarray(self.times["decode"])
        found["fetch+decode"] = percentiles(both.tolist())
        whole = found["search hybrid"]["p50_ms"]
        found["fetch+decode share"] = round(found["fetch+decode"]["p50_ms"] / whole, 4)
        found |= {"dense_recall@100": self.recall()}
        return found | {"open_ms": round(self.open_ms, 1), "bytes": self.bytes}


if __name__ == "__main__":
    main()
