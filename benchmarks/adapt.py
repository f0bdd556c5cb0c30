r"""Adapt a model to collections without their labels, and see what that does for their judged queries.

    python benchmarks/adapt.py lists --data DATA --work WORK
    python benchmarks/adapt.py learn --work WORK --minutes 20 [--keep] --json benchmarks/results/adapt.json
    python benchmarks/adapt.py search --data DATA --work WORK [--keep] --json FILE

`lists` indexes each collection and writes WORK/NAME: queries made of the passages with their candidates, and
the judged queries with what a search reads for them. `learn` needs no index and no store, so it also runs on
a box with torch alone: it adapts the model by what teachers say, and ranks the judged candidates with both.
`search` puts the models that `learn` left into indexes and searches those, as a user would.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench_report import options, write_report
from decoupled.measure.metrics import ndcg
from decoupled.model.folder import starter_model, write_scoring
from decoupled.model.model import Model
from decoupled.model.scoring import Scoring
from decoupled.runtime import cpu
from decoupled.train.data.lists import Asked, Lists, list_candidates
from decoupled.train.imitate import adapt_recipe, imitate
from decoupled.train.teachers import default_teachers, engine_of, scores_of

NAMES = ("nfcorpus", "cranfield", "lisa")
JUDGED = 50
"""Candidates of a judged query."""


def main() -> None:
    """Run what the command line names."""
    what = {"lists": lists, "learn": learn, "search": search}
    asked = {"model": str(starter_model()), "data": Path("data"), "only": [str], "limit": 100}
    learning = {
        "queries": 2000,
        "minutes": 5.0,
        "keep": False,
        "teacher": [str],
        "lr": float,
        "seed": 0,
    }
    args = options(__doc__, *what, **asked, **learning)
    cpu.protect()
    args.work = args.work or Path("work")
    found = {name: what[args.what](args, name) for name in args.only or NAMES}
    means = {
        kind: round(float(np.mean([one[kind] for one in found.values()])), 2)
        for kind in ("rerank_before", "rerank_after", "before", "after")
        if all(kind in one for one in found.values())
    }
    how = {"minutes": args.minutes, "keep_index": args.keep, "lr": args.lr}
    write_report(args, {"model": Path(args.model).name, **how, "fields": found, "ndcg@10": means})


def told(line: dict[str, Any]) -> None:
    """A line of progress."""
    print(json.dumps(line), file=sys.stderr, flush=True)


def folder_of(args: argparse.Namespace, name: str) -> Path:
    """Where the lists of a collection lie."""
    return args.work / f"lists-{name}"


def lists(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Queries and candidates of one collection, for models that have no index beside them."""
    import starter_data as sets
    from decoupled import Index
    from decoupled.train.adapt import collect
    from decoupled.train.data.cache import Cache

    data, path = sets.field(args.data, name), args.work / f"{name}.idx"
    exists = (path / "manifest.json").exists()
    with Index.open(path, write=True) if exists else Index.create(path, args.model) as index:
        index.add(data.passages)
        recipe = adapt_recipe({"seed": args.seed})
        made = collect(
            index, Cache(args.work / "cache", told), None, limit=args.queries, recipe=recipe
        )
        queries = data.queries[: args.limit]
        asked = [Asked(query.text) for query in queries]
        judged = list_candidates(index, asked, JUDGED, others=False)
    folder = folder_of(args, name)
    for part, one in zip(("train", "held", "judged"), (*made, judged), strict=True):
        one.save(folder / f"{part}.npz")
    known = {query.text: data.qrels[query.id] for query in queries}
    (folder / "qrels.json").write_text(json.dumps(known), encoding="utf-8")
    return {"queries": len(made[0]), "held_out": len(made[1]), "judged": len(judged)}


def learn(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """nDCG@10 of the judged candidates, as a search blends them, before and after."""
    folder = folder_of(args, name)
    taught, held, judged = (
        Lists.load(folder / f"{part}.npz") for part in ("train", "held", "judged")
    )
    qrels = json.loads((folder / "qrels.json").read_text(encoding="utf-8"))
    model = Model.open(args.model)
    changes = {"seed": args.seed, **({"optimiser.lr": args.lr} if args.lr else {})}
    out = args.work / f"{name}-{'upper' if args.keep else 'whole'}"
    made = imitate(
        model,
        (taught, held),
        args.teacher or default_teachers(model),
        adapt_recipe(changes),
        Path(f"{out}.run"),
        keep_index=args.keep,
        minutes=args.minutes,
        progress=told,
    )
    made.model.save(out)
    if made.scoring is not None:
        write_scoring(out, made.scoring)
    before = gains(model, model.spec.scoring, judged, qrels)
    after = gains(made.model, made.scoring, judged, qrels)
    return {
        "queries": made.queries,
        "teachers": made.panel.names,
        "agreement_before": made.before.to_json(),
        "agreement_after": made.after.to_json(),
        "judged": len(judged),
        "before": before,
        "after": after,
    }


def gains(
    model: Model, scoring: Scoring | None, judged: Lists, qrels: dict[str, dict[str, int]]
) -> tuple[float, float]:
    """nDCG@10 in per cent of what a search found: by the rank head alone, and as a search blends it."""
    logits = scores_of(engine_of(model), judged).astype(np.float64)
    known = scoring or Scoring()
    blended = logits + judged.first_stage @ np.asarray([known.bm25, known.cosine])
    found = []
    for scores in (logits, blended):
        run = {
            query: list(dict.fromkeys(judged.candidates(number)[n].id for n in np.argsort(-row)))
            for number, (query, row) in enumerate(zip(judged.queries, scores, strict=True))
        }
        found.append(round(100 * ndcg(run, {query: qrels[query] for query in run}, 10), 2))
    return found[0], found[1]


def search(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """nDCG@10 of `search` over the index as it was, and over that of the adapted model."""
    import starter_data as sets
    from decoupled import Engine, Index, reindex

    data, path = sets.field(args.data, name), args.work / f"{name}.idx"
    model = args.work / f"{name}-{'upper' if args.keep else 'whole'}"
    again = args.work / f"{name}-adapted.idx"
    if args.keep:
        after = Engine(Index.open(path, model=model))
    else:
        reindex(path, again, model=model)
        after = Engine(again)
    found = {}
    for kind, engine in (("before", Engine(path)), ("after", after)):
        run = {
            query.id: [hit.id for hit in engine.search(query.text, 10)]
            for query in data.queries[: args.limit]
        }
        found[kind] = round(100 * ndcg(run, {query: data.qrels[query] for query in run}, 10), 2)
    return {"judged": len(run), **found}


if __name__ == "__main__":
    main()
