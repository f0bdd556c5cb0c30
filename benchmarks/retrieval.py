"""What a cascade costs and spares: how much of what the first stage finds can be left unread.

    python benchmarks/retrieval.py cascade --squad data/squad1/dev-v1.1.json --work WORK

The corpus is every paragraph of all files, and the queries are questions of the last file, spread over it,
each with one right paragraph: its own. The model is the starter where none is named. WORK keeps the index.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench_report import clocked, percentiles
from decoupled import Engine, build_index, read_pairs, read_passages
from decoupled.index.documents import Pair, Query
from decoupled.lab.script import options, write_report
from decoupled.measure.late_interaction import Tuned, tune_cascade
from decoupled.measure.metrics import best_over
from decoupled.model.folder import starter_model
from decoupled.model.parts.head import HeadKind
from decoupled.model.states import Encoded, Ragged, States
from decoupled.runtime import cpu
from decoupled.runtime.base import Logits
from decoupled.search.late_interaction import LateInteraction
from decoupled.train.fit.scoring import spread


def main() -> None:
    """Run what the command line names."""
    model = {"model": str(starter_model()), "runtime": "auto", "threads": 2}
    asked = {"squad": [Path], "queries": 400, "timed": 20, "loss": 0.002}
    args = options(__doc__, "cascade", **asked, **model)
    cpu.protect()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as scratch:
        write_report(args, cascade(args, args.work or Path(scratch)))


def cascade(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Index, ask, fit, choose."""
    path = work / "squad.idx"
    build_index([str(f) for f in args.squad], path, model=args.model)
    engine = Remembering(path, runtime=args.runtime)
    by_text = {passage.text: passage.id for passage in read_passages(*args.squad)}
    pairs = spread(list(read_pairs(args.squad[-1])), args.queries)
    queries = [Query(id=pair.id, text=pair.query) for pair in pairs]
    qrels = {pair.id: {by_text[pair.passage]: 1} for pair in pairs}
    tuned = tune_cascade(engine, queries, qrels, loss=args.loss)
    return {
        "runtime": engine.runtime.name,
        **tuned.to_json(),
        "look": look_times(engine, queries[: args.timed], tuned.cascade),
        "ask": answers(engine, pairs[1::2], tuned),
    }


class Remembering(Engine):
    """An engine whose cross component is asked about a query and a passage once, and counts what it read."""

    def __init__(self, source: Path, *, runtime: str) -> None:
        super().__init__(source, runtime=runtime)
        self.known: dict[tuple[bytes, bytes], tuple[np.ndarray, np.ndarray]] = {}
        self.read = 0
        self.compute, self.runtime.cross = self.runtime.cross, self.cross

    def cross(self, query: States, passages: Encoded, heads: Sequence[HeadKind]) -> Logits:
        """Both heads are computed, whichever are asked for now: the other will be."""
        self.read += len(passages)
        names = [(query.values.tobytes(), passage.tobytes()) for passage in passages]
        if lacking := [n for n, name in enumerate(names) if name not in self.known]:
            found = self.compute(query, passages.select(lacking), ("span", "rank"))
            for n, span, rank in zip(lacking, found["span"], found["rank"].values, strict=True):
                self.known[names[n]] = span, rank
        spans, ranks = zip(*(self.known[name] for name in names), strict=True)
        ones = np.ones(len(names), np.int64)
        every = {"rank": Ragged(np.stack(ranks), ones), "span": Ragged.stack(spans)}
        return {kind: every[kind] for kind in heads}


def look_times(engine: Engine, queries: Sequence[Query], how: LateInteraction) -> dict[str, Any]:
    """Milliseconds of the look at a hundred candidates, the codes already read."""
    times, view, codec = [], engine.index.store.snapshot, engine.index.codec
    encoded = view.states(view.rows()[:: max(1, len(view) // 100)][:100])
    for query in queries:
        ids = engine.runtime.tokenizer.query(query.text)
        look = partial(how.scores, engine.runtime.encode("query", [ids]).states, encoded, codec)
        for _ in range(3):
            clocked(times, lambda look=look: how.choose(look(), 10))
    return {**percentiles(times), "tokens": int(encoded.lengths.sum())}


def answers(engine: Remembering, pairs: Sequence[Pair], tuned: Tuned) -> dict[str, Any]:
    """F1 of the best answer over a hundred candidates, how many were read, and how many answers changed."""
    found: dict[str, Any] = {"questions": len(pairs)}
    fitted = {str(k): replace(tuned.cascade, keep=k) for k in (0.03, 0.1, 0.2, 0.3, 0.5)}
    plain = {f"plain {k}": replace(tuned.cascade, keep=k, metric=None) for k in (0.1, 0.3)}
    whole: list[str] = []
    for name, how in {"all": None, **fitted, "chosen": tuned.cascade, **plain}.items():
        engine.read, engine.cascade = 0, how
        best = [engine.ask(pair.query, 1) for pair in pairs]
        texts = [answer[0].text if len(answer) else "" for answer in best]
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


if __name__ == "__main__":
    main()
