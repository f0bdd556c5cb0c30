"""What a cascade costs in quality, and its look in time, with the starter model on SQuAD paragraphs.

    python benchmarks/cascade_quality.py --squad data/squad1/dev-v1.1.json --work WORK --json OUT.json

The corpus is every paragraph of the file, the queries are questions spread over it, each with one right
paragraph: its own. WORK keeps the index.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench_report import options, percentiles, write_report
from decoupled.index.documents import Pair, Query, read_pairs, read_passages
from decoupled.index.index import Index
from decoupled.index.manifest import is_index
from decoupled.measure.late_interaction import Tuned, tune_cascade
from decoupled.measure.metrics import best_over
from decoupled.model.folder import starter_model
from decoupled.model.parts.head import HeadKind
from decoupled.model.states import Encoded, Ragged, States
from decoupled.runtime import cpu
from decoupled.runtime.base import Logits
from decoupled.search.engine import Engine
from decoupled.search.late_interaction import LateInteraction
from retrieval import spread


def main() -> None:
    """Index, ask, fit, choose, report."""
    args = options(
        __doc__, squad=Path, queries=400, timed=20, loss=0.002, runtime="auto", threads=2
    )
    cpu.protect()
    torch.set_num_threads(args.threads)
    index = built(args.work / "squad.idx", args.squad)
    engine = Remembering(index, runtime=args.runtime)
    pairs = spread(list(read_pairs(args.squad)), args.queries)
    by_text = {passage.text: passage.id for passage in read_passages(args.squad)}
    queries = [Query(id=pair.id, text=pair.query) for pair in pairs]
    qrels = {pair.id: {by_text[pair.passage]: 1} for pair in pairs}
    tuned = tune_cascade(engine, queries, qrels, loss=args.loss)
    report: dict[str, Any] = {"runtime": engine.runtime.name, **tuned.to_json()}
    report["look"] = look_times(engine, queries[: args.timed], tuned.cascade)
    report["ask"] = answers(engine, pairs[1::2], tuned)
    write_report(args, report)


def built(path: Path, squad: Path) -> Path:
    """The index of all paragraphs; one that is there is completed."""
    opened = (
        Index.open(path, write=True)
        if is_index(path)
        else Index.create(path, starter_model(), codec="int8")
    )
    with opened as index:
        index.add(read_passages(squad))
    return path


class Remembering(Engine):
    """An engine whose cross component is asked about a query and a passage once, and counts what it read."""

    def __init__(self, source: Path, *, runtime: str) -> None:
        super().__init__(source, runtime=runtime)
        self.known: dict[tuple[bytes, bytes], tuple[np.ndarray, np.ndarray]] = {}
        self.read = 0
        own, self.runtime.cross = self.runtime.cross, self.cross
        self.compute = own

    def cross(self, query: States, passages: Encoded, heads: Sequence[HeadKind]) -> Logits:
        """Both heads are computed, whichever are asked for now: the other will be."""
        self.read += len(passages)
        names = [(query.values.tobytes(), passage.tobytes()) for passage in passages]
        lacking = [n for n, name in enumerate(names) if name not in self.known]
        if lacking:
            found = self.compute(query, passages.select(lacking), ("span", "rank"))
            for n, span, rank in zip(lacking, found["span"], found["rank"].values, strict=True):
                self.known[names[n]] = span, rank
        spans, ranks = zip(*(self.known[name] for name in names), strict=True)
        every = {
            "rank": Ragged(np.stack(ranks), np.ones(len(names), np.int64)),
            "span": Ragged.stack(spans),
        }
        return {kind: every[kind] for kind in heads}


def look_times(
    engine: Engine, queries: Sequence[Query], cascade: LateInteraction
) -> dict[str, Any]:
    """Milliseconds of the look at a hundred candidates, the codes already read."""
    assert engine.index is not None and engine.index.store is not None
    times, view = [], engine.index.store.snapshot
    rows = view.rows()[:: max(1, len(view) // 100)][:100]
    for query in queries:
        ids = engine.runtime.tokenizer.query(query.text)
        states, encoded = engine.runtime.encode("query", [ids]).states, view.states(rows)
        for _ in range(3):
            begun = time.perf_counter()
            cascade.choose(cascade.scores(states, encoded, engine.index.codec), 10)
            times.append((time.perf_counter() - begun) * 1e3)
    return {**percentiles(times), "tokens": int(encoded.lengths.sum())}


def answers(engine: Remembering, pairs: Sequence[Pair], tuned: Tuned) -> dict[str, Any]:
    """F1 of the best answer over a hundred candidates, how many were read, and how many answers changed."""
    found: dict[str, Any] = {"questions": len(pairs)}
    fitted = {str(k): replace(tuned.cascade, keep=k) for k in (0.03, 0.1, 0.2, 0.3, 0.5)}
    plain = {f"plain {k}": replace(tuned.cascade, keep=k, metric=None) for k in (0.1, 0.3)}
    whole: list[str] = []
    for name, cascade in {"all": None, **fitted, "chosen": tuned.cascade, **plain}.items():
        engine.read = 0
        texts = [answer(engine, pair, cascade) for pair in pairs]
        whole = whole or texts
        golds = ([a.text for a in pair.answers] for pair in pairs)
        exact, f1 = np.mean([best_over(g, t) for g, t in zip(golds, texts, strict=True)], 0)
        found[name] = {
            "f1": round(100 * float(f1), 2),
            "exact": round(100 * float(exact), 2),
            "read": round(engine.read / len(pairs), 2),
            "changed": sum(a != b for a, b in zip(texts, whole, strict=True)),
        }
    return found


def answer(engine: Engine, pair: Pair, cascade: LateInteraction | None) -> str:
    """The text of the best answer to one question; empty where there is none."""
    engine.cascade = cascade
    try:
        best = engine.ask(pair.query, 1)
    finally:
        engine.cascade = None
    return best[0].text if len(best) else ""


if __name__ == "__main__":
    main()
