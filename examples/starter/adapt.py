r"""Adapt a model to collections without their labels, and see what that does for their judged queries.

    python examples/starter/adapt.py lists --data DATA --work WORK
    python examples/starter/adapt.py teach --work WORK --only nfcorpus
    python examples/starter/adapt.py learn --work WORK --epochs 3 [--keep] --json FILE
    python examples/starter/adapt.py search --data DATA --work WORK [--keep] --json FILE
    python examples/starter/adapt.py stop --work WORK --only lisa --minutes 20 [--keep] --json FILE

`lists` indexes each collection and writes WORK/NAME: queries made of the passages with their candidates, and
the judged queries with what a search reads for them; `nftrain` and `nfdev` are other judged queries of
NFCorpus. `teach` and `learn` need no index and no store, so they also run on a box with torch alone. `teach`
trains the joint form of the model on the judgments of the training queries; over SQuAD on its training
questions and on queries made of its paragraphs, each with its own passage as the right one but for a share
`--soft` of what the cosines of `--model`, a sentence encoder, say. `learn` adapts the model by what teachers
say, split at `--at` first where that is given, and ranks the judged candidates with both; with `--teacher
judged` by what `teach` left, on the training queries; with `--choose` it says only how far they agree on
other queries, to choose settings by. `search` puts the models that `learn` left into indexes and searches
those, as a user would.
`stop` kills the command `adapt` after half of its minutes, by signal 9, and runs it again, over an index of
`--model` where there is none yet.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from bm25 import Bm25

from decoupled.lab.script import options, write_report
from decoupled.lab.study.paired import paired_difference
from decoupled.measure.metrics import ndcg
from decoupled.measure.pairs import Pair
from decoupled.methods.scores.fields import Field
from decoupled.model.folder import starter_model, write_scoring
from decoupled.model.model import Model
from decoupled.model.scoring import Scoring
from decoupled.model.tokens import Passage
from decoupled.runtime import cpu
from decoupled.train.data.lists import Floats, Lists, TrainingQuery, list_candidates
from decoupled.train.data.synthetic import query_from, rarity
from decoupled.train.data.tasks import TASKS
from decoupled.train.imitate import adapt_recipe, imitate, learn_from
from decoupled.train.loop.checkpoint import read_lines
from decoupled.train.reshape import teacher_of, with_text
from decoupled.train.run import distill, with_head
from decoupled.train.run import recipe as training_recipe
from decoupled.train.teachers import (
    Scale,
    Teachers,
    agreement,
    engine_of,
    scores_of,
)

NAMES = ("nfcorpus", "cranfield", "lisa")
JUDGED = 50
"""Candidates of a judged query."""
HELD = 600
"""Queries made of SQuAD's paragraphs that are set aside, and as many to choose settings by."""
WIDE = 16
"""Candidates of a training query over SQuAD; a quarter of them are any passages."""
ASKED = 48_000
"""Training questions of SQuAD that a teacher learns from, and as many queries made of its paragraphs."""
SHARPNESS = 20.0
"""Inverse temperature of the cosines that soften what a teacher learns."""


def main() -> None:
    """Run what the command line names."""
    what = {"lists": lists, "teach": teach, "learn": learn, "search": search, "stop": stop}
    asked = {"model": str(starter_model()), "data": Path("data"), "only": [str], "limit": 100}
    learning = {
        "queries": 2000,
        "minutes": float,
        "epochs": 3.0,
        "keep": False,
        "at": int,
        "soft": 0.3,
        "choose": False,
        "out": Path,
        "teacher": [str],
        "lr": float,
        "set": [str],
        "seed": 0,
    }
    args = options(__doc__, *what, **asked, **learning)
    cpu.protect()
    args.work = args.work or Path("work")
    given = (field.split("=", 1) for field in args.set or ())
    args.set = {name: json.loads(value) for name, value in given}
    found = {name: what[args.what](args, name) for name in args.only or NAMES}
    how = {"epochs": args.epochs, "minutes": args.minutes, "keep_index": args.keep, "lr": args.lr}
    how |= {"set": args.set}
    write_report(args, {"model": Path(args.model).name, **how, "fields": found})


def told(line: dict[str, Any]) -> None:
    """A line of progress."""
    print(json.dumps(line), file=sys.stderr, flush=True)


def folder_of(args: argparse.Namespace, name: str) -> Path:
    """Where the lists of a collection lie."""
    return args.work / f"lists-{name}"


def lists(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Queries and candidates of one collection, for models that have no index beside them."""
    import sets

    if name == "squad":
        taught = sets.squad_questions(args.data, min(ASKED, args.queries))
        return plain_lists(args, sets.squad_field(args.data), taught)
    from decoupled import Index
    from decoupled.train.adapt import collect
    from decoupled.train.data.cache import Cache

    part = {"nftrain": "asked", "nfdev": "tune"}.get(name)
    data, name = sets.field(args.data, name), "nfcorpus" if part else name
    folder, path = folder_of(args, name), args.work / f"{name}.idx"
    exists = (path / "manifest.json").exists()
    with Index.open(path, write=True) if exists else Index.create(path, args.model) as index:
        index.add(data.passages)
        if part is not None:
            known = {query.text: data.qrels[query.id] for query in data.queries}
            found = list_candidates(
                index, [TrainingQuery(query) for query in known], JUDGED, others=False
            )
            return kept(folder, part, found, known)
        recipe = adapt_recipe({"seed": args.seed})
        cache = Cache(args.work / "cache", told)
        made = collect(index, cache, None, limit=args.queries, recipe=recipe)
        known = {query.text: data.qrels[query.id] for query in data.queries[: args.limit]}
        judged = list_candidates(
            index, [TrainingQuery(query) for query in known], JUDGED, others=False
        )
    sizes = [kept(folder, part, one) for part, one in zip(("train", "held"), made, strict=True)]
    return {**sizes[0], **sizes[1], **kept(folder, "judged", judged, known)}


def kept(
    folder: Path, part: str, lists: Lists, known: dict[str, dict[str, int]] | None = None
) -> dict[str, int]:
    """Write one part, and the judgments of its queries."""
    lists.save(folder / f"{part}.npz")
    if known is not None:
        (folder / f"{part}.json").write_text(json.dumps(known), encoding="utf-8")
    return {part: len(lists)}


def plain_lists(
    args: argparse.Namespace, data: Field, questions: Sequence[tuple[str, int]]
) -> dict[str, Any]:
    """The same without an index: queries made of the passages, and what BM25 finds for them.

    `questions` are others, each with the number of its passage, that a teacher may learn from.
    """
    folder, rare = folder_of(args, data.name), rarity(p.text for p in data.passages)
    draw, asked = Random(args.seed), []
    for number in range(args.queries):
        if not (place := number % len(data.passages)):
            order = draw.sample(range(len(data.passages)), len(data.passages))
        row = order[place]
        passage = data.passages[row]
        if made := query_from(passage.text, passage.title, draw, rare):
            asked.append(TrainingQuery(made.query, row, made.without))
    known = {query.text: data.qrels[query.id] for query in data.queries[: args.limit]}
    parts = {
        "train": [one for one in asked if not one.held],
        "held": [one for one in asked if one.held][:HELD],
        "choose": [one for one in asked if one.held][HELD : 2 * HELD],
        "asked": [TrainingQuery(query, row) for query, row in questions],
        "judged": [TrainingQuery(query) for query in known],
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    words, sizes = Bm25([passage.text for passage in data.passages], device), dict[str, int]()
    for name, some in parts.items():
        found = by_words(data.passages, words, some)
        sizes |= kept(folder, name, found, known if name == "judged" else None)
    return sizes


def by_words(
    passages: Sequence[Passage], words: Bm25, asked: Sequence[TrainingQuery], count: int = WIDE
) -> Lists:
    """`count` candidates of each query: its own passage, the best of BM25, a quarter any."""
    texts, draw = list(passages), np.random.default_rng(0)
    best = words.top([one.query for one in asked], count)
    rows = np.zeros((len(asked), count), np.int64)
    for number, one in enumerate(asked):
        own = [] if one.source is None else [one.source]
        near = [int(row) for row in best[number] if row >= 0 and row not in own]
        any_ = draw.choice(len(passages), 2 * count, replace=False).tolist()
        chosen = dict.fromkeys([*own, *near[: count - count // 4 - len(own)], *any_])
        rows[number] = list(chosen)[:count]
        if one.without is not None and one.source is not None:
            rows[number, 0] = len(texts)
            texts.append(replace(passages[one.source], text=one.without))
    used, places = np.unique(rows, return_inverse=True)
    return Lists(
        queries=tuple(one.query for one in asked),
        sourced=np.asarray([one.source is not None for one in asked]),
        texts=tuple(texts[row] for row in used.tolist()),
        rows=places.reshape(rows.shape),
        first_stage=np.zeros((*rows.shape, 2), np.float32),
    )


def judgments(folder: Path, part: str) -> dict[str, dict[str, int]]:
    """Grades of the passages of each query, by its text."""
    known: dict[str, dict[str, int]] = json.loads(
        (folder / f"{part}.json").read_text(encoding="utf-8")
    )
    return known


def teach(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """A joint reranker of the collection, from the judgments of its training queries."""
    folder, out = folder_of(args, name), args.work / f"{name}-judged"
    asked = Lists.load(folder / "asked.npz")
    sourced = bool(asked.sourced.any())
    opened = Model.open(args.model)
    model = teacher_of(opened) if opened.spec.split else opened
    model = with_text(model, passage_tokens=384 if sourced else 256)
    changes = {"optimiser.lr": args.lr or 5e-5, "optimiser.epochs": args.epochs, "seed": args.seed}
    changes |= {"optimiser.batch": 64, "optimiser.warmup": 0.1}
    if args.minutes:
        changes |= {"optimiser.minutes": args.minutes, "optimiser.epochs": 1e4}
    if sourced:
        taught = joined(asked, Lists.load(folder / "train.npz")[: len(asked)])
        near = cosines(args.model, taught) if args.soft else np.zeros(taught.rows.shape, np.float32)
        said = softened(near, args.soft)
        recipe = adapt_recipe({"reader.lrs": 0.0, **changes, **args.set})
        model = with_head(model, TASKS["rank"], args.seed)
        alone = Teachers((), model)
        run = Path(f"{out}.run")
        trained, _ = learn_from(model, (taught, said), alone, recipe, run, progress=told)
        trained.save(out)
        pairs = said.size
    else:
        known = judgments(folder, "asked")
        # What a search found, and nothing else: relevant passages that it did not find share fewer words
        # with their query than the others that it did, and who learns from those learns that words mean
        # nothing good.
        data = [
            Pair(query=query, passage=passage.text, label=known[query].get(passage.id, 0))
            for number, query in enumerate(asked.queries)
            for passage in asked.candidates(number)
        ]
        recipe = training_recipe("plain", changes | args.set)
        trained = distill(model, data=data, task="rank", recipe=recipe, out=out, progress=told)
        pairs = len(data)
    found: dict[str, Any] = {"pairs": pairs}
    for part, when, one in (
        ("tune", "after", trained),
        ("judged", "before", model),
        ("judged", "after", trained),
    ):
        if not (folder / f"{part}.npz").exists() or not one.spec.heads:
            continue
        judged, qrels = Lists.load(folder / f"{part}.npz"), judgments(folder, part)
        gained = gains(scores_of(engine_of(one, runtime="torch"), judged), None, judged, qrels)
        found.setdefault(part, {"queries": len(judged)})[when] = gained[0]
    return found


def joined(first: Lists, second: Lists) -> Lists:
    """The queries of both."""
    return Lists(
        queries=first.queries + second.queries,
        sourced=np.concatenate([first.sourced, second.sourced]),
        texts=first.texts + second.texts,
        rows=np.concatenate([first.rows, second.rows + len(first.texts)]),
        first_stage=np.concatenate([first.first_stage, second.first_stage]),
    )


def cosines(model: str, lists: Lists) -> Floats:
    """`[Q,C]` of each query with its candidates, by a sentence encoder."""
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(model)
    if encoder.device.type == "cuda":
        encoder.half()
    how: dict[str, Any] = {"batch_size": 512, "convert_to_tensor": True}
    texts = list(dict.fromkeys(passage.text for passage in lists.texts))
    place = {text: number for number, text in enumerate(texts)}
    of = torch.tensor([place[passage.text] for passage in lists.texts])
    queries, passages = (
        encoder.encode(some, normalize_embeddings=True, **how).float()
        for some in (list(lists.queries), texts)
    )
    found = []
    for at in range(0, len(lists), 1024):
        rows = torch.from_numpy(lists.rows[at : at + 1024])
        found.append(torch.einsum("qd,qcd->qc", queries[at : at + 1024], passages[of[rows]]).cpu())
    return torch.cat(found).numpy()


def softened(near: Floats, share: float) -> Floats:
    """`[Q,C]` logits: the query's own passage is right, but for a share of what is near to the query."""
    chance = torch.from_numpy(SHARPNESS * near).softmax(1).numpy() * share
    chance[:, 0] += 1 - share
    # Of a passage as likely as any other, 0.
    return np.log(np.maximum(chance, 1e-6) * chance.shape[1]).astype(np.float32)


def learn(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """nDCG@10 of the judged candidates, by the rank head and as a search blends it, before and after."""
    folder, model = folder_of(args, name), Model.open(args.model)
    model = Model.split(model, at=args.at) if args.at else model
    by_judgments = args.teacher == ["judged"]
    parts = (
        "asked" if by_judgments else "train",
        "choose" if args.choose else "held",
        "judged",
    )
    taught, held, judged = (Lists.load(folder / f"{part}.npz") for part in parts)
    qrels = judgments(folder, "judged")
    teachers = [args.work / f"{name}-judged"] if by_judgments else args.teacher
    changes = {"seed": args.seed, "optimiser.epochs": args.epochs}
    changes |= {"optimiser.lr": args.lr} if args.lr else {}
    if by_judgments:
        taught = halves(taught)
        changes["optimiser.batch"] = 4
    changes |= args.set
    out = args.out or args.work / f"{name}-{'upper' if args.keep else 'whole'}"
    made = imitate(
        model,
        (taught, held),
        Teachers(teachers or ["joint"], model, runtime="torch"),
        adapt_recipe(changes),
        Path(f"{out}.run"),
        keep_index=args.keep,
        minutes=args.minutes,
        progress=told,
    )
    made.model.save(out)
    if model.spec.scoring is not None:
        write_scoring(out, model.spec.scoring)
    found = {
        "queries": made.queries,
        "teachers": [Path(name).name for name in made.teachers.names],
        "agreement_before": made.before.to_json(),
        "agreement_after": made.after.to_json(),
    }
    if args.choose:
        return found
    found["judged"] = len(judged)
    own, said = (scores_of(made.teachers.engine_of(one), judged) for one in (model, made.model))
    found["before"] = gains(own, model.spec.scoring, judged, qrels)
    found["after"] = gains(said, model.spec.scoring, judged, qrels)
    for engine in made.teachers.engines[:1]:
        heard = scores_of(engine, judged)
        # On the scale of the student, as it was taught.
        scaled = Scale.of(own, heard[None]).apply(0, heard)
        found["teacher"] = gains(scaled, model.spec.scoring, judged, qrels)
        found["judged_agreement_before"] = agreement(own, heard).to_json()
        found["judged_agreement_after"] = agreement(said, heard).to_json()
    return found


def halves(lists: Lists) -> Lists:
    """Each query twice, with every other candidate: fewer in a step."""
    return replace(
        lists,
        queries=2 * lists.queries,
        sourced=np.tile(lists.sourced, 2),
        rows=np.concatenate([lists.rows[:, start::2] for start in (0, 1)]),
        first_stage=np.concatenate([lists.first_stage[:, start::2] for start in (0, 1)]),
    )


def gains(
    logits: Floats, scoring: Scoring | None, judged: Lists, qrels: dict[str, dict[str, int]]
) -> tuple[float, float]:
    """nDCG@10 in per cent of what a search found: by the rank head alone, and as a search blends it."""
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
    import sets

    from decoupled import Engine, Index, reindex

    data, path = sets.field(args.data, name), args.work / f"{name}.idx"
    model = args.work / f"{name}-{'upper' if args.keep else 'whole'}"
    if not args.keep:
        reindex(path, args.work / f"{name}-adapted.idx", model=model)
    after = Engine(
        Index.open(path, model=model) if args.keep else args.work / f"{name}-adapted.idx"
    )
    asked, scores = data.queries[: args.limit], dict[str, list[float]]()
    for kind, engine in (("before", Engine(path)), ("after", after)):
        runs = ({q.id: [hit.id for hit in engine.search(q.text, 10)]} for q in asked)
        scores[kind] = [100 * ndcg(run, {q: data.qrels[q] for q in run}, 10) for run in runs]
    gained = paired_difference(scores["after"], scores["before"])
    means = {kind: round(float(np.mean(found)), 2) for kind, found in scores.items()}
    return {"judged": len(asked), **means, "gained": [round(value, 2) for value in gained]}


def stop(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """What `adapt` says of itself when it was killed half-way and begun again."""
    import sets

    from decoupled import Index

    out, minutes, path = (
        args.work / f"{name}-stopped",
        args.minutes or 20.0,
        args.work / f"{name}.idx",
    )
    if not (path / "manifest.json").exists():
        with Index.create(path, args.model) as index:
            index.add(sets.field(args.data, name).passages)
    command = [sys.executable, "-m", "decoupled", "adapt", str(path)]
    command += ["-o", str(out), "--minutes", str(minutes), "--json"]
    command += ["--keep-index"] if args.keep else []
    command += ["--lr", str(args.lr)] if args.lr else []
    shutil.rmtree(f"{out}.run", ignore_errors=True)
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        first.wait(30 * minutes)
    first.kill()
    lines = read_lines(Path(f"{out}.run") / "log.jsonl")
    begun, killed = time.perf_counter(), first.wait()
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        "passages": len(Index.open(path).refresh()),
        "first": {"seconds": round(30 * minutes), "exit": killed, "steps": steps_of(lines)},
        "again": {"seconds": round(time.perf_counter() - begun, 1), **json.loads(again.stdout)},
        "steps": steps_of(read_lines(Path(f"{out}.run") / "log.jsonl")),
    }


def steps_of(lines: Sequence[dict[str, Any]]) -> int:
    """How many a log has counted."""
    return max((line["step"] for line in lines if "loss" in line), default=0)


if __name__ == "__main__":
    main()
