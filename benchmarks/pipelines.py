"""Rerankers as stages of PyTerrier, measured by its own experiment on a BEIR folder.

    python benchmarks/pipelines.py --beir DATA/ir_classic/cranfield --checkpoint MINILM_L12 --json OUT

BM25 (of `bm25s`) finds `--depth` documents of a query, and each reranker ranks them again: the bundled model
from an index, the checkpoint as a CrossEncoder of sentence-transformers, and the same checkpoint split at 4
and untrained, from an index of its own. `--every 4` takes each fourth query. Nothing is timed.
"""

import tempfile
from pathlib import Path
from typing import Any

from decoupled import Engine, Index, Model, Passage, read_passages
from decoupled.lab.script import options, write_report
from decoupled.measure.retrieval import judged_queries
from decoupled.model.tokens import as_sentence

MEASURES = ("nDCG@10", "RR@10", "P@10", "AP")


def main() -> None:
    """Index, build the pipelines, and run the experiment."""
    args = options(__doc__ or "", beir=Path, checkpoint=Path, split=4, depth=100, every=1)
    queries, judged = judged_queries(args.beir, None)
    assert judged is not None
    queries = queries[:: args.every]
    passages = [p for p in read_passages(args.beir) if p.text]
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        split = Model.split(args.checkpoint, at=args.split, positions="typical")
        engines = {
            "ours, bundled": indexed(Path(scratch, "bundled"), passages, None),
            f"L12 split at {args.split}": indexed(Path(scratch, "split"), passages, split),
        }
        stages: dict[str, Any] = {**engines, "L12, CrossEncoder": args.checkpoint}
        table = experiment(first_stage(passages, args.depth), queries, judged, stages)
    about = {"data": args.beir.name, "queries": len(queries), "depth": args.depth}
    write_report(args, {**about, "systems": table})


def indexed(path: Path, passages: list[Passage], model: Model | None) -> Engine:
    """An engine over an index of the passages."""
    with Index.create(path, model) as index:
        index.add(passages)
    return Engine(path)


def experiment(
    bm25: Any, queries: list[Any], judged: Any, stages: dict[str, Any]
) -> list[dict[str, Any]]:
    """The measures of each pipeline, and how many queries it makes better and worse than BM25."""
    import ir_measures
    import pandas as pd
    import pyterrier as pt

    from decoupled.integrations.pyterrier import DecoupledTransformer

    topics = pd.DataFrame([[q.id, q.text] for q in queries], columns=["qid", "query"])
    grades = [[q.id, d, g] for q in queries for d, g in judged[q.id].items()]
    # Without texts, passages come from the index.
    names_alone = pt.apply.generic(lambda frame: frame.drop(columns="text"))
    systems = {"BM25": bm25}
    for name, stage in stages.items():
        ours = isinstance(stage, Engine)
        last = names_alone >> DecoupledTransformer(stage) if ours else cross_encoder(stage)
        systems[f"BM25 >> {name}"] = bm25 >> last
    table = pt.Experiment(
        list(systems.values()),
        topics,
        pd.DataFrame(grades, columns=["qid", "docno", "label"]),
        [ir_measures.parse_measure(name) for name in MEASURES],
        names=list(systems),
        baseline=0,
        validate="ignore",
    )
    kept = ["name", *MEASURES, "nDCG@10 +", "nDCG@10 -", "nDCG@10 p-value"]
    return [
        {n: row[n] if isinstance(row[n], str) else _rounded(row[n]) for n in kept}
        for row in table.to_dict("records")
    ]


def _rounded(value: float | None) -> float | None:
    """The value with what a reader needs of it; None where the baseline has none."""
    return None if value is None or value != value else float(f"{value:.4g}")


def first_stage(passages: list[Passage], depth: int) -> Any:
    """BM25 of `bm25s` as it comes, over titles and texts."""
    import bm25s
    import pandas as pd
    import pyterrier as pt

    texts = [f"{as_sentence(p.title)} {p.text}" for p in passages]
    names, index = [p.id for p in passages], bm25s.BM25()
    index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)

    def best(frame: Any) -> Any:
        words = bm25s.tokenize(list(frame["query"]), show_progress=False)
        rows, scores = index.retrieve(words, k=depth, show_progress=False)
        ranked = [
            {**query, "docno": names[n], "text": texts[n], "score": float(score)}
            for query, *pairs in zip(frame.to_dict("records"), rows, scores, strict=True)
            for n, score in zip(*pairs, strict=True)
            if score > 0
        ]
        return pt.model.add_ranks(pd.DataFrame(ranked))

    return pt.apply.generic(best)


def cross_encoder(checkpoint: Path) -> Any:
    """The joint model over the texts of the frame."""
    import pyterrier as pt
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(checkpoint))

    def scores(frame: Any) -> Any:
        pairs = list(zip(frame["query"], frame["text"], strict=True))
        return model.predict(pairs, show_progress_bar=False)

    return pt.apply.doc_score(scores, batch_size=256)


if __name__ == "__main__":
    main()
