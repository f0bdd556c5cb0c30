"""What the title of a passage is worth: read with it, or left in the text, or not there at all.

    decoupled index /usr/share/doc/postgresql-doc* /usr/share/doc/python3* -o manuals.idx
    decoupled index /usr/share/doc/postgresql-doc* /usr/share/doc/python3* -o plain.idx --no-title-path
    python benchmarks/titles.py --titled manuals.idx --plain plain.idx \
        --json benchmarks/results/titles_manuals.json
    python benchmarks/titles.py --beir DATA/ir_classic/cisi --json benchmarks/results/titles_rows.json

The questions over two manuals (manuals/questions.jsonl) are asked of both indexes. Of the BEIR folder, whose
rows have titles, three indexes are made: as it is, with titles as the first words of texts, without titles.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "manuals"))

from bench_report import options, write_report  # noqa: E402
from decoupled import Engine, Index, Passage, read_passages  # noqa: E402
from decoupled.index.documents import Query  # noqa: E402
from decoupled.measure.metrics import Qrels, ndcg  # noqa: E402
from decoupled.measure.retrieval import judged_queries, retrieve  # noqa: E402
from decoupled.model.tokens import as_sentence  # noqa: E402
from measure import DEPTHS, STAGES, answers, compare, rank, shares  # noqa: E402

CHANGES: dict[str, Callable[[Passage], Passage]] = {
    "titled": lambda p: p,
    "in the text": lambda p: replace(p, title="", text=f"{as_sentence(p.title)} {p.text}"),
    "none": lambda p: replace(p, title=""),
}


def main() -> None:
    """Compare with and without."""
    args = options(__doc__, titled=Path, plain=Path, beir=Path)
    report: dict[str, Any] = {}
    if args.titled is not None:
        lines = (HERE / "manuals" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
        asked = [question for question in map(json.loads, lines) if question["answers"]]
        report["manuals"] = manuals(args, asked)
    if args.beir is not None:
        report["rows"] = rows(args)
    write_report(args, report)


def manuals(args: Any, asked: list[dict[str, Any]]) -> dict[str, Any]:
    """The questions over the manuals."""
    found, ranks = {}, {}
    for name in ("titled", "plain"):
        path = getattr(args, name)
        engine = Engine(path)
        ways = {stage: ranked(engine, asked, stage) for stage in STAGES}
        hits = (engine.search(q["question"], max(DEPTHS)) for q in asked)
        ways["search"] = [rank(hit, q) for hit, q in zip(hits, asked, strict=True)]
        ranks[name] = ways
        found[name] = {way: shares(each) for way, each in ways.items()} | answers(engine, asked)
        assert engine.index is not None
        info = engine.index.info()
        found[name] |= {key: info[key] for key in ("bytes", "passages", "fingerprint")}
    both = {way: compare(ranks["titled"][way], ranks["plain"][way]) for way in ranks["titled"]}
    return {"questions": len(asked), **found, "compared": both}


def ranked(engine: Engine, asked: list[dict[str, Any]], stage: Any) -> list[int | None]:
    """Where a first stage ranks the right passage of each question."""
    return [
        rank(engine.candidates(q["question"], 3 * max(DEPTHS), first_stage=stage), q) for q in asked
    ]


def rows(args: Any) -> dict[str, Any]:
    """Judged queries over rows, with their titles as such, in the text, and without."""
    queries, judged = judged_queries(args.beir, None)
    assert judged is not None
    found: dict[str, Any] = {"data": args.beir.name, "queries": len(queries)}
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        for name, change in CHANGES.items():
            with Index.create(Path(scratch, name)) as index:
                index.add(map(change, read_passages(args.beir)))
            found[name] = ndcg_of(Engine(Path(scratch, name)), queries, judged)
    return found


def ndcg_of(engine: Engine, queries: Sequence[Query], judged: Qrels) -> dict[str, float]:
    """nDCG@10 of each first stage, and of search."""
    asked = [query for query in queries if any(judged[query.id].values())]
    kept = {query.id: judged[query.id] for query in asked}
    runs = {s: {q.id: retrieve(engine, q.text, s, 100) for q in asked} for s in STAGES}
    runs["search"] = {q.id: [hit.id for hit in engine.search(q.text, 10)] for q in asked}
    return {name: round(ndcg(run, kept, 10), 4) for name, run in runs.items()}


if __name__ == "__main__":
    main()
