"""What the title of a passage is worth: read with it, or left in the text, or not there at all.

    python benchmarks/titles.py --beir DATA/ir_classic/cisi --json benchmarks/results/titles_rows.json

Of the BEIR folder, whose rows have titles, three indexes are made: as it is, with titles as the first words
of texts, without titles.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from decoupled import Engine, Index, Passage, read_passages
from decoupled.lab.script import options, write_report
from decoupled.measure.metrics import Qrels, ndcg
from decoupled.measure.pairs import Query
from decoupled.measure.retrieval import judged_queries, retrieve
from decoupled.model.tokens import as_sentence

STAGES = ("lexical", "dense", "hybrid")
CHANGES: dict[str, Callable[[Passage], Passage]] = {
    "titled": lambda p: p,
    "in the text": lambda p: replace(p, title="", text=f"{as_sentence(p.title)} {p.text}"),
    "none": lambda p: replace(p, title=""),
}


def main() -> None:
    """Judged queries over rows, with their titles as such, in the text, and without."""
    args = options(__doc__, beir=Path)
    queries, judged = judged_queries(args.beir, None)
    assert judged is not None
    found: dict[str, Any] = {"data": args.beir.name, "queries": len(queries)}
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        for name, change in CHANGES.items():
            with Index.create(Path(scratch, name)) as index:
                index.add(map(change, read_passages(args.beir)))
            found[name] = ndcg_of(Engine(Path(scratch, name)), queries, judged)
    write_report(args, {"rows": found})


def ndcg_of(engine: Engine, queries: Sequence[Query], judged: Qrels) -> dict[str, float]:
    """nDCG@10 of each first stage, and of search."""
    asked = [query for query in queries if any(judged[query.id].values())]
    kept = {query.id: judged[query.id] for query in asked}
    runs = {s: {q.id: retrieve(engine, q.text, s, 100) for q in asked} for s in STAGES}
    runs["search"] = {q.id: [hit.id for hit in engine.search(q.text, 10)] for q in asked}
    return {name: round(ndcg(run, kept, 10), 4) for name, run in runs.items()}


if __name__ == "__main__":
    main()
