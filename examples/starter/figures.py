r"""What the starter model is judged by, each figure through the call that a user makes.

    python examples/starter/figures.py fit --model MODEL --data DATA
    python examples/starter/figures.py squad --data DATA --json benchmarks/results/starter_squad.json

`fit` learns blend, fusion, calibration, no-answer and how much is read on development data and keeps them in
MODEL; `reading` only the last. Then
`squad`: answers from the given passage; `squad2`: the same where half of the questions have none; `open`:
answers from every paragraph of SQuAD; `fields`: seven collections, first stages and default search;
`exits`: what those of a model leave to be run; `dl21` and `wikiqa`: reranking. WORK keeps indexes and what
was measured so far, so that a run goes on after a stop; `--limit` is the most questions of a set,
`--keep-tokens` the share of the tokens that indexes store. The model is the starter where none is named.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import sets

from decoupled import Engine, Index, Passage
from decoupled.lab.script import options, write_report
from decoupled.measure.metrics import best_over, mrr, ndcg, normalised_gain, recall, reciprocal_rank
from decoupled.measure.pairs import Pair
from decoupled.measure.retrieval import retrieve
from decoupled.methods.exits.fit import ONE_ROW
from decoupled.methods.scores.calibration import calibration_error, reliability
from decoupled.methods.scores.fields import Field, field_of
from decoupled.methods.scores.scoring import corpora_of, fit_reading, learn, read_all, spread
from decoupled.model.folder import starter_model, write_scoring
from decoupled.model.progress import counter
from decoupled.model.scoring import Scoring
from decoupled.runtime import cpu

STAGES = ("lexical", "dense", "hybrid")
FEW = 1000
"""Questions whose own scores are kept, to compare two models by the same ones."""


def main() -> None:
    """Run what the command line names."""
    what = {"fit": fit, "reading": fit, "squad": squad, "squad2": squad2, "open": open_domain}
    what |= {"fields": fields, "exits": exits, "dl21": dl21, "wikiqa": wikiqa}
    asked = {"model": str(starter_model()), "data": Path("data"), "limit": int, "candidates": 100}
    args = options(__doc__, *what, **asked, runtime="auto", only=[str], keep_tokens=1.0)
    cpu.protect()
    args.work = args.work or Path("work")
    args.work.mkdir(parents=True, exist_ok=True)
    model = Path(args.model)
    given = {"model": model.name, "runtime": args.runtime, "keep_tokens": args.keep_tokens}
    write_report(args, {**given, **what[args.what](args)})


def fit(args: argparse.Namespace) -> dict[str, Any]:
    """Learn the model's scores on what it was neither trained on nor is judged by."""
    names = args.only or ["pubmedqa", "nq", "tldr", "adi", "nfdev", "squad"]
    found = [development(args.data, name) for name in names]
    engines = [indexed(args, f"dev-{one.name}", one.passages, "all") for one in found]
    how = {"limit": args.limit or 100, "candidates": args.candidates}
    if args.what == "fit":
        fitted = learn(engines, found, progress=told, **how)
    else:  # scores were learnt before and stay
        corpora = [answerable(one) for one in corpora_of(engines, found, how["limit"])]
        count, step = how["candidates"], counter(told, sum(len(one.queries) for one in corpora))
        ranked = [one.ranked(count, step) for one in corpora]
        scoring = engines[0].spec.scoring or Scoring()
        fitted = fit_reading(engines[0], scoring, ranked, read_all(corpora, count, step))
    write_scoring(args.model, fitted.scoring, late=fitted.late, exits=fitted.exits)
    return {**how, "fields": names, **fitted.to_json()}


def answerable(corpus: Any) -> Any:
    """A corpus with the questions that it answers alone."""
    return replace(corpus, pairs=[pair for pair in corpus.pairs if pair.answers], absent=[])


def development(data: Path, name: str) -> Field:
    """Queries that were held out: of SQuAD, of a file that was trained on, or of a collection."""
    if name == "squad":
        return sets.squad_development(data)
    return sets.ranked(data, name) if name in sets.RANKED else sets.field(data, name)


def told(done: int, total: int | None) -> None:
    """A line now and then."""
    if done % 50 == 0:
        print(f"{done} of {total}", file=sys.stderr, flush=True)


# Reading ------------------------------------------------------------------------------------------


class Answered:
    """Scores of answers as they come."""

    def __init__(self) -> None:
        self.f1: list[float] = []
        self.exact: list[float] = []
        self.scores: list[float] = []
        self.right: list[bool] = []
        self.silent = 0

    def add(self, pair: Pair, answers: Sequence[Any]) -> None:
        """What `ask` gave for a question."""
        exact, f1 = best_over([a.text for a in pair.answers], answers[0].text if answers else "")
        self.f1.append(f1)
        self.exact.append(exact)
        if answers:
            self.scores.append(answers[0].score)
            self.right.append(bool(pair.answers) and f1 > 0.5)
        else:
            self.silent += 1

    def summary(self) -> dict[str, Any]:
        """F1, exact match, and whether scores mean what they say."""
        table = reliability(self.scores, self.right) if self.scores else []
        return {
            "questions": len(self.f1),
            "each": [round(value, 3) for value in self.f1] if len(self.f1) <= FEW else [],
            "f1": round(100 * float(np.mean(self.f1)), 2),
            "exact": round(100 * float(np.mean(self.exact)), 2),
            "not_answered": self.silent,
            "calibration_error": round(calibration_error(table), 4) if table else None,
            "reliability": [one.to_json() for one in table],
        }


def ask_given(args: argparse.Namespace, pairs: list[Pair]) -> tuple[Answered, Answered]:
    """Each question with its own passage: always answered, and as `ask` answers."""
    engine = Engine(args.model, runtime=args.runtime, remember=1 << 28)
    answered, sure = Answered(), Answered()
    # What `auto` stands for, so that nothing is read twice.
    least = (engine.spec.scoring or Scoring()).answer_threshold(passages_given=True) or 0.0
    chosen = spread(pairs, args.limit) if args.limit else pairs
    for number, pair in enumerate(chosen):
        answers = engine.ask(pair.query, 1, texts=[pair.passage], threshold=0)
        answered.add(pair, answers)
        sure.add(pair, [answer for answer in answers if answer.score >= least])
        told(number, len(chosen))
    return answered, sure


def drawn(name: str, title: str, found: dict[str, Any]) -> dict[str, Any]:
    """What `report` draws: scores against how often they are right."""
    curves = [
        {"name": n, "error": one["calibration_error"], "bins": one["reliability"]}
        for n, one in found.items()
    ]
    return {"kind": "calibration", "name": name, "title": title, "curves": curves}


def squad(args: argparse.Namespace) -> dict[str, Any]:
    """SQuAD 1.1: the passage given, `ask` as it is."""
    found = ask_given(args, sets.squad(args.data, "squad1"))[0].summary()
    if args.limit:  # too few to draw
        return found
    return drawn("squad", "answers from a given passage", {"SQuAD 1.1": found}) | found


def squad2(args: argparse.Namespace) -> dict[str, Any]:
    """SQuAD 2.0: always answered, and no answer where the model gives none."""
    always, auto = ask_given(args, sets.squad(args.data, "squad2"))
    found = {"auto": auto.summary(), "always": always.summary()}
    title = "half of the questions without an answer"
    return drawn("squad2", title, {"SQuAD 2.0": found["always"]}) | found


def open_domain(args: argparse.Namespace) -> dict[str, Any]:
    """Every paragraph of SQuAD as the corpus: answers, and how often the first stages find theirs.

    `all_read`: every candidate is read; `500_candidates`: five times as many of them.
    """
    passages = sets.squad_corpus(args.data)
    engine, whole = (indexed(args, "squad", passages, read) for read in (None, "all"))
    others = {"all_read": Answered(), "500_candidates": Answered()}
    by_text = {passage.text: passage.id for passage in passages}
    pairs = spread(sets.squad(args.data, "squad1"), args.limit or 1000)
    answered = Answered()
    runs: dict[str, dict[str, list[str]]] = {stage: {} for stage in STAGES}
    for number, pair in enumerate(pairs):
        answered.add(pair, engine.ask(pair.query, candidates=args.candidates, threshold=0))
        answers = whole.ask(pair.query, candidates=args.candidates, threshold=0)
        others["all_read"].add(pair, answers)
        others["500_candidates"].add(pair, engine.ask(pair.query, candidates=500, threshold=0))
        for stage in STAGES:
            runs[stage][str(number)] = retrieve(engine, pair.query, stage, 100)
        told(number, len(pairs))
    qrels = {str(n): {by_text[pair.passage]: 1} for n, pair in enumerate(pairs)}
    first = {stage: of_run(run, qrels) for stage, run in runs.items()}
    found = answered.summary()
    shown = drawn("open", "answers from all passages", {"SQuAD": found})
    more = {name: {n: one.summary()[n] for n in ("f1", "exact")} for name, one in others.items()}
    return shown | {"passages": len(passages), **found, **more, "first_stage": first}


# Ranking ------------------------------------------------------------------------------------------


def indexed(
    args: argparse.Namespace, name: str, passages: Sequence[Passage], read: Any = None
) -> Engine:
    """An engine over an index in WORK, which is made or completed, and reads as the model says, or all."""
    path = args.work / f"{name}{kept(args)}.idx"
    made = (path / "manifest.json").exists()
    with (
        Index.open(path, write=True, runtime=args.runtime)
        if made
        else Index.create(path, args.model, runtime=args.runtime, keep_tokens=args.keep_tokens)
    ) as index:
        index.add(passages)
    # The model as it is now: its scores may have been learnt since.
    return Engine(Index.open(path, model=args.model, runtime=args.runtime), cascade=read)


def kept(args: argparse.Namespace) -> str:
    """What names of files end with where indexes keep not all tokens."""
    return "" if args.keep_tokens == 1 else f"-{args.keep_tokens:g}"


def of_run(run: dict[str, list[str]], qrels: Any) -> dict[str, float]:
    """nDCG@10, recall@100 and MRR@10, in per cent."""
    kept = {query: qrels[query] for query in run}
    found = {"ndcg@10": ndcg(run, kept, 10), "recall@100": recall(run, kept, 100)}
    found["mrr@10"] = mrr(run, kept, 10)
    return {name: round(100 * value, 2) for name, value in found.items()}


def fields(args: argparse.Namespace) -> dict[str, Any]:
    """First stages and search on each collection, and the calibration of its scores.

    `search` returns a hundred, so every candidate is read; `default` returns ten.
    """
    found = {}
    for name in args.only or sets.FIELDS:
        cached = args.work / f"{name}{kept(args)}.json"
        if not cached.exists():
            cached.write_text(json.dumps(one_field(args, name)), encoding="utf-8")
        found[name] = json.loads(cached.read_text(encoding="utf-8"))
        size = stored_bytes(args.work / f"{index_of(name)}{kept(args)}.idx")
        found[name]["bytes_of_150_tokens"] = round(size * math.ceil(150 * args.keep_tokens))
    mean = {
        kind: round(float(np.mean([one[kind]["ndcg@10"] for one in found.values()])), 2)
        for kind in (*STAGES, "search", "default")
    }
    below = [n for n, one in found.items() if one["search"]["ndcg@10"] < one["lexical"]["ndcg@10"]]
    shown = drawn("fields", "relevance of what a search finds", found)
    return shown | {"fields": found, "mean_ndcg@10": mean, "below_bm25": below}


def one_field(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """One collection."""
    data = sets.field(args.data, name)
    engine = indexed(args, index_of(name), data.passages)
    queries = spread(data.queries, args.limit) if args.limit else data.queries
    runs: dict[str, dict[str, list[str]]] = {}
    scores, right = [], []
    for number, query in enumerate(queries):
        for stage in STAGES:
            runs.setdefault(stage, {})[query.id] = retrieve(engine, query.text, stage, 100)
        hits = engine.search(query.text, 100, candidates=args.candidates)
        runs.setdefault("search", {})[query.id] = [hit.id for hit in hits]
        ten = engine.search(query.text, candidates=args.candidates)
        runs.setdefault("default", {})[query.id] = [hit.id for hit in ten]
        scores += [hit.score for hit in hits]
        right += [data.qrels[query.id].get(hit.id, 0) > 0 for hit in hits]
        told(number, len(queries))
    table = reliability(scores, right)
    return {
        "passages": len(data.passages),
        "queries": len(queries),
        **{kind: of_run(run, data.qrels) for kind, run in runs.items()},
        "calibration_error": round(calibration_error(table), 4),
        "reliability": [one.to_json() for one in table],
    }


def exits(args: argparse.Namespace) -> dict[str, Any]:
    """What exits leave to be run of searches and of questions, and what that costs against reading all."""
    found = {}
    for name in args.only or ["med", "cranfield", "time", "squad1"]:
        asks = name == "squad1"
        data = field_of(name, sets.squad(args.data, name)) if asks else sets.field(args.data, name)
        pairs = {pair.query: pair for pair in data.pairs}
        queries = spread(data.queries, args.limit) if args.limit else data.queries
        one: dict[str, Any] = {"passages": len(data.passages), "queries": len(queries)}
        for kind, read in (("exits", None), ("all", "all")):
            engine, answered, run = indexed(args, name, data.passages, read), Answered(), {}
            work = counted(engine)
            for query in queries:
                if asks:
                    answered.add(pairs[query.text], engine.ask(query.text, threshold=0))
                else:
                    run[query.id] = [hit.id for hit in engine.search(query.text)]
            judged = answered.summary() if asks else of_run(run, data.qrels)
            one[kind] = {n: judged[n] for n in ("f1", "exact", "ndcg@10") if n in judged}
            one[kind]["layers"] = sum(work)
        one["layers_run"] = round(one["exits"]["layers"] / one["all"]["layers"], 4)
        found[name] = one
    return {"fields": found}


def counted(engine: Engine) -> list[float]:
    """Cross layers of passages that an engine reads from now on, in whole layers."""
    runtime, spec, work = engine.runtime, engine.spec, list[float]()
    plain, whole = runtime.cross, len(spec.layers)

    def cross(query: Any, passages: Any, heads: Sequence[str], **how: Any) -> Any:
        # The last layer of a rank head reads one row.
        least = 1 - ONE_ROW if "span" not in heads else 0
        work.append(len(passages) * ((how.get("last") or whole) - spec.split - least))
        return plain(query, passages, heads, **how)

    runtime.cross = cross  # type: ignore[method-assign]
    return work


def index_of(name: str) -> str:
    """The index of a collection: two have the same passages."""
    return "nfcorpus" if name == "nfdev" else name


def stored_bytes(path: Path) -> float:
    """Bytes of a token's states on disk, of those that an index keeps."""
    import lance  # which reranking does without

    table = lance.dataset(str(path / "passages.lance"))
    rows = table.to_table(columns=["size", "tokens"], filter="window >= 0")
    return float(pc.sum(rows["size"]).as_py() / pc.sum(rows["tokens"]).as_py())


def orders(args: argparse.Namespace, listed: Sequence[sets.Listed]) -> Iterator[list[int]]:
    """The grades of each list, as `rerank` orders its texts."""
    engine = Engine(args.model, runtime=args.runtime)
    for number, one in enumerate(listed):
        hits = engine.rerank(one.query, texts=one.texts)
        yield [one.grades[int(hit.id)] for hit in hits]
        told(number, len(listed))


def dl21(args: argparse.Namespace) -> dict[str, Any]:
    """BM25's hundred reranked: nDCG@10 against the best ten of all judgments, gains are the grades."""
    listed = sets.dl21(args.data)[: args.limit]
    after = list(orders(args, listed))
    found: dict[str, Any] = {"queries": len(listed)}
    for name, every in (("bm25", [one.grades for one in listed]), ("rerank", after)):
        # Gains of 2^grade - 1, as the data's own table has it.
        pairs = zip(every, [one.ideal for one in listed], strict=True)
        gains = [normalised_gain(*([2**g - 1 for g in x] for x in pair), 10) for pair in pairs]
        found[name] = round(100 * float(np.mean(gains)), 2)
    return found


def wikiqa(args: argparse.Namespace) -> dict[str, Any]:
    """Sentences of a page by how well they answer: mean reciprocal rank."""
    listed = sets.wikiqa(args.data)[: args.limit]
    ranks = [reciprocal_rank(grades, len(grades)) for grades in orders(args, listed)]
    return {"questions": len(listed), "mrr": round(100 * float(np.mean(ranks)), 2)}


if __name__ == "__main__":
    main()
