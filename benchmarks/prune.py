"""Pruning beside simple rules: how many answers are kept when sentences are left out.

python benchmarks/prune.py --data DATA -o benchmarks/results/prune.json [--questions 500]
python benchmarks/prune.py --data DATA --fit -o build/prune_weights.json [--questions 1500]

Each question comes with the passage that holds its answer, and once with another passage. Everything is read
through `Engine.rerank(..., prune=0)`, whose `sentences` have the probability of each. A rule gives each
sentence a number; the best of all passages together are kept up to a share of the tokens. An answer is kept
if a sentence that holds a part of it is. The bundled model was not trained on the development set of SQuAD,
nor on subjqa; it was on policyqa and nq. The weights in `search/prune.py` are a logistic regression on
questions of SQuAD's training set, policyqa and nq with and without their passages: `--fit` fits it, on
the halves of policyqa and nq that the measurement leaves out.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
import re
import time
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

import decoupled as dc
from decoupled.lab.bench.report import commit
from decoupled.model.folder import starter_model
from decoupled.search import prune
from decoupled.search.request import Request

REMOVED = (0.5, 0.6, 0.7)
THRESHOLDS = (0.05, 0.1, 0.2, 0.5)
LONG, TYPICAL = -0.5, 25
"""Weight of the logarithm of a unit's tokens, and the tokens of a unit whose probability it leaves as it is.

The weight was chosen from 0 to -1 with a look at some of the measured questions, then on halves of policyqa,
nq and subjqa that the measurement leaves out: at -0.5 no set kept notably fewer answers at any share, and
those with long units kept more.
"""


def squad(data: Path, which: str = "dev") -> list:
    """Questions of SQuAD with their paragraph and the places of the answers."""
    with lzma.open(data / "squad1" / f"{which}-v1.1.json.xz", "rt") as file:
        articles = json.load(file)["data"]
    return [
        (
            q["question"],
            p["context"],
            [(a["answer_start"], a["answer_start"] + len(a["text"])) for a in q["answers"]],
        )
        for article in articles
        for p in article["paragraphs"]
        for q in p["qas"]
    ]


def rows(data: Path, name: str) -> list:
    """The same of a file of `rank`."""
    with lzma.open(data / "rank" / f"{name}.jsonl.xz", "rt") as file:
        read = [json.loads(line) for line in file]
    examples = []
    for row in read:
        spans = []
        for answer in row.get("answers", ()):
            if isinstance(answer, str):
                spans += [m.span() for m in re.finditer(re.escape(answer), row["passage"])]
            else:
                spans.append((answer[1], answer[1] + len(answer[0])))
        if spans:
            examples.append((row["query"], row["passage"], spans))
    return examples


def words(text: str) -> list[str]:
    """The words of a text."""
    return re.findall(r"\w+", text.lower())


def bm25(query: str, sentences: list[str]) -> list[float]:
    """BM25 of each sentence among those of its passage."""
    split = [words(s) for s in sentences]
    mean = sum(map(len, split)) / len(split) or 1
    scores = []
    for own in split:
        score = 0.0
        for word in set(words(query)):
            having = sum(word in other for other in split)
            idf = math.log(1 + (len(split) - having + 0.5) / (having + 0.5))
            count = own.count(word)
            score += idf * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(own) / mean))
        scores.append(score)
    return scores


def looked_at(engine: dc.Engine, examples: list, tokens) -> list[dict]:
    """Per sentence: its tokens, whether it holds an answer, and the number that each rule gives it."""
    table = []
    for number, (query, text, spans) in enumerate(examples):
        (hit,) = engine.rerank(query, texts=[text], prune=0.0)
        if hit.offset or not hit.sentences or len(hit.text) < len(text):
            continue  # a passage of several windows
        bounds = [(start, end) for start, end, _ in hit.sentences]
        pieces = [text[a:b] for a, b in bounds]
        best = engine.ask(query, texts=[text], k=20, threshold=0)
        lengths, lexical = tokens(pieces), bm25(query, pieces)
        for n, (start, end, chance) in enumerate(hit.sentences):
            inside = [a.score for a in best if a.start < end and a.end > start]
            table.append(
                {
                    "passage": number,
                    "tokens": lengths[n],
                    "gold": any(a < end and b > start for a, b in spans),
                    "keep": chance,
                    "first": -n,
                    "bm25": lexical[n],
                    "span": max(inside, default=0.0),
                }
            )
    return table


def kept_answers(table: list[dict], rule: str, removed: float) -> float:
    """The share of passages with an answer of which a sentence with the answer is kept."""
    tokens = np.array([row["tokens"] for row in table])
    order = np.argsort([-row[rule] for row in table], kind="stable")
    room = np.cumsum(tokens[order]) <= (1 - removed) * tokens.sum()
    kept = set(order[room].tolist())
    golden = {row["passage"] for row in table if row["gold"]}
    safe = {row["passage"] for n, row in enumerate(table) if n in kept and row["gold"]}
    return len(safe) / len(golden)


def at_threshold(table: list[dict], others: list[dict], least: float) -> dict:
    """What a threshold removes, and keeps."""

    def removed(rows: list[dict]) -> float:
        left = sum(row["tokens"] for row in rows if row["keep"] >= least)
        return round(1 - left / sum(row["tokens"] for row in rows), 3)

    golden = {row["passage"] for row in table if row["gold"]}
    safe = {row["passage"] for row in table if row["gold"] and row["keep"] >= least}
    return {
        "threshold": least,
        "removed": removed(table),
        "answers_kept": round(len(safe) / len(golden), 4),
        "removed_of_other_passages": removed(others),
    }


def cost(engine: dc.Engine, examples: list, k: int = 10, count: int = 100) -> dict:
    """Milliseconds of a rerank of stored passages with and without pruning, medians of alternating runs."""
    ids, times = [p.id for p in engine.candidates("what", count)], {None: [], "auto": []}
    same = 0.0
    for query, _, _ in examples[:40]:
        hits = {}
        for how in times:
            began = time.perf_counter()
            hits[how] = engine.rerank(query, ids=ids, k=k, prune=how)
            times[how].append((time.perf_counter() - began) * 1e3)
        plain, pruned = hits.values()
        assert [h.id for h in plain] == [h.id for h in pruned]
        same = max(same, *(abs(a.score - b.score) for a, b in zip(plain, pruned, strict=True)))
    plain, pruned = (float(np.median(t)) for t in times.values())
    return {
        "passages": len(ids),
        "k": k,
        "rerank_ms": round(plain, 1),
        "with_pruning_ms": round(pruned, 1),
        "ratio": round(pruned / plain, 3),
        "largest_change_of_a_score": same,
    }


def context(engine: dc.Engine, examples: list, k: int = 5) -> dict:
    """What a language model is sent of a search over the sample passages: tokens, and answers in them."""
    tokens, whole, left, kept, there = engine.runtime.tokenizer.lengths, 0, 0, 0, 0
    for query, text, spans in examples:
        hits = engine.search(query, k, prune="auto")
        texts, pruned = [h.text for h in hits], [h.pruned_text or "" for h in hits]
        whole, left = whole + sum(tokens(texts)), left + sum(tokens(pruned))
        answers = {text[a:b] for a, b in spans}
        before = any(answer in shown for answer in answers for shown in texts)
        there += before
        kept += before and any(answer in shown for answer in answers for shown in pruned)
    count = len(examples)
    return {
        "questions": count,
        "k": k,
        "tokens_before": round(whole / count),
        "tokens_after": round(left / count),
        "with_an_answer_before": round(there / count, 3),
        "with_an_answer_after": round(kept / count, 3),
    }


def features(engine: dc.Engine, examples: list) -> dict[str, np.ndarray]:
    """Features of each sentence by span logits, matching tokens and words, and whether it holds an answer."""
    pruner = prune.Pruner(engine.runtime, None)
    read, matched, shared, gold = [], [], [], []
    for query, text, spans in examples:
        (search,) = engine.score([Request(query=query, head="span", texts=(text,), k=1)])
        if search.error is not None or len(search.windows) != 1:
            continue
        ((_, excerpt),) = search.windows.describe([0])
        tokens = prune.tokens_of(excerpt, units := prune.units(excerpt.text))
        full = [n for n, own in enumerate(tokens) if len(own)]
        tokens, rank = [tokens[n] for n in full], float(search.logits["rank"].values[0, 0])
        (cosines,) = pruner._cosines(search, np.array([0]), search.windows.states)
        read.append(prune.read_features(search.logits["span"][0].astype(float), rank, tokens))
        matched.append(prune.match_features(cosines, rank, tokens))
        words = prune.shared_words(query, excerpt)
        shared.append(prune.match_features(words, rank, tokens))
        gold += [any(a < units[n][1] and b > units[n][0] for a, b in spans) for n in full]
    rules = {"read": read, "matched": matched, "shared": shared}
    return {name: np.concatenate(own) for name, own in rules.items()} | {
        "gold": np.array(gold, float)
    }


def regression(features_UF: np.ndarray, gold_U: np.ndarray) -> dict:
    """Weights and offset of a logistic regression, with a small penalty on standardised weights."""
    mean, spread = features_UF.mean(0), features_UF.std(0)
    scaled = (features_UF - mean) / spread

    def loss(weights: np.ndarray) -> float:
        logits = scaled @ weights[:-1] + weights[-1]
        return float(
            (np.logaddexp(0, logits) - gold_U * logits).mean() + 1e-4 * (weights[:-1] ** 2).sum()
        )

    best = minimize(loss, np.zeros(features_UF.shape[1] + 1)).x
    own = best[:-1] / spread
    return {"features": own.round(3).tolist(), "offset": round(float(best[-1] - own @ mean), 3)}


def fit(engine: dc.Engine, data: Path, questions: int) -> dict:
    """The weights of `search/prune.py`, on questions with their passage and with another one."""
    examples = []
    halves = ((name, rows(data, name)) for name in ("policyqa", "nq"))
    sets = [squad(data, "train"), *(every[len(every) // 2 :] for _, every in halves)]
    for chosen, share in zip(sets, (2, 1, 1), strict=True):
        random.Random(0).shuffle(chosen)
        own = chosen[: share * questions // 4]
        away = [(query, own[n - 7][1], []) for n, (query, _, _) in enumerate(own[: len(own) // 6])]
        examples += own + away
    found = features(engine, examples)
    gold = found.pop("gold")
    # The weight of a unit's tokens is chosen, not fitted: a long one holds more answers and costs more room.
    weights = {name: regression(own[:, :3], gold) for name, own in found.items()}
    weights["read"]["features"].append(LONG)
    weights["read"]["offset"] = round(weights["read"]["offset"] - LONG * math.log(TYPICAL), 3)
    return {"units": len(gold), **weights}


def main() -> None:
    """Measure all sets, and the cost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--fit", action="store_true", help="Fit the weights instead.")
    parser.add_argument("--keep-cost", action="store_true", help="Leave the times as they are.")
    parser.add_argument("--only-context", action="store_true", help="Tokens and cost alone.")
    options = parser.parse_args()
    engine = dc.Engine(starter_model(), remember=1 << 28)
    if options.fit:
        weights = {"commit": commit(), **fit(engine, options.data, options.questions)}
        print(json.dumps(weights, indent=1))
        options.output.write_text(json.dumps(weights, indent=1) + "\n")
        return
    tokens = engine.runtime.tokenizer.lengths
    sets = {"squad_dev": squad(options.data)}
    for name in ("policyqa", "nq", "subjqa"):
        examples = rows(options.data, name)
        sets[name] = examples[: len(examples) // 2]
    report: dict = {"commit": commit(), "questions": options.questions, "sets": {}}
    before = json.loads(options.output.read_text()) if options.keep_cost else None
    if options.only_context:  # the sets as they were measured before
        report, sets = json.loads(options.output.read_text()), {"squad_dev": sets["squad_dev"]}
        random.Random(0).shuffle(sets["squad_dev"])
    for name, examples in () if options.only_context else sets.items():
        random.Random(0).shuffle(examples)
        chosen = examples[: options.questions]
        away = [(q, chosen[n - 7][1], []) for n, (q, _, _) in enumerate(chosen[: len(chosen) // 3])]
        table, others = looked_at(engine, chosen, tokens), looked_at(engine, away, tokens)
        report["sets"][name] = {
            "sentences": round(len(table) / len({row["passage"] for row in table}), 2),
            "answers_kept": {
                rule: {f"{r:.0%} removed": round(kept_answers(table, rule, r), 4) for r in REMOVED}
                for rule in ("keep", "span", "bm25", "first")
            },
            "thresholds": [at_threshold(table, others, least) for least in THRESHOLDS],
        }
        print(name, json.dumps(report["sets"][name]), flush=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    sample = dc.open()
    report["context"] = context(sample, sets["squad_dev"][: options.questions])
    if before is None:
        report["cost"] = cost(sample, sets["squad_dev"])
    else:
        report["cost"] = {"commit": before["commit"], **before["cost"]}
    print(report["context"], report["cost"])
    options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
