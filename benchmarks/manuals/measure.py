"""Questions over manuals: where search and each first stage rank the right passage, and what is answered.

    apt-get install postgresql-doc python3-doc
    decoupled index /usr/share/doc/postgresql-doc* /usr/share/doc/python3* -o manuals.idx
    python benchmarks/manuals/measure.py --index manuals.idx --json benchmarks/results/manuals.json
    apt-get install apache2-doc
    decoupled index /usr/share/doc/apache2-doc/manual/en -o apache.idx
    python benchmarks/manuals/measure.py --index apache.idx --questions benchmarks/manuals/apache.jsonl \
        --json benchmarks/results/manuals_apache.json

A passage is right when it comes from a document that questions.jsonl names and holds its words. An answer is
right when it is one of the accepted ones as SQuAD compares them, or holds one with at most five words more.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench_report import bytes_under, percentiles  # noqa: E402
from decoupled import Engine, Hit, Passage  # noqa: E402
from decoupled.lab.script import options, write_report  # noqa: E402
from decoupled.lab.study.paired import paired_difference  # noqa: E402
from decoupled.search.answers import normalise_answer  # noqa: E402

DEPTHS = (1, 3, 10)
STAGES = ("lexical", "dense", "hybrid")
EXTRA = 5
"""Words that an answer may have beside an accepted one."""

Question = dict[str, Any]


def main() -> None:
    """Measure one index."""
    args = options(__doc__, index=Path, questions=HERE / "questions.jsonl")
    lines = args.questions.read_text(encoding="utf-8").splitlines()
    asked = [json.loads(line) for line in lines]
    engine = Engine(args.index)
    engine.ask("warm up")
    answerable = [question for question in asked if question["answers"]]
    taken: list[float] = []

    def search(query: str) -> Sequence[Hit]:
        hits = engine.search(query, max(DEPTHS))
        taken.append(hits.timing.total_ms)
        return hits

    ways: dict[str, Callable[[str], Sequence[Hit | Passage]]] = {"search": search}
    for stage in STAGES:
        ways[stage] = lambda q, stage=stage: engine.candidates(
            q, 3 * max(DEPTHS), first_stage=stage
        )
    ranks = {name: [rank(way(q["question"]), q) for q in answerable] for name, way in ways.items()}
    report = {
        "questions": len(answerable),
        "stored": stored(engine, answerable),
        "index": index_facts(args.index, engine),
        "passages": {name: shares(found) for name, found in ranks.items()},
        "compared": {stage: compare(ranks["search"], ranks[stage]) for stage in STAGES},
        "search_time": percentiles(taken),
        **answers(engine, answerable),
        "unanswerable": unanswerable(engine, [q for q in asked if not q["answers"]]),
        "ranks": {q["id"]: {n: ranks[n][i] for n in ranks} for i, q in enumerate(answerable)},
    }
    write_report(args, report)


def index_facts(path: Path, engine: Engine) -> dict[str, Any]:
    """What was searched, and how many bytes each part of it takes for each byte of text."""
    assert engine.index is not None
    info = engine.index.info()
    # Windows of a long passage overlap; manuals have next to none.
    text = sum(len(part.text.encode()) for part in engine.index.refresh().scan())
    parts = {
        "states": path / "states",
        "table": path / "passages.lance" / "data",
        "search index": path / "passages.lance" / "_indices",
        "model": path / "model",
    }
    sizes = {"all": bytes_under(path)} | {name: bytes_under(at) for name, at in parts.items()}
    facts = {name: info[name] for name in ("passages", "codec", "model")}
    per_byte = {name: round(size / text, 2) for name, size in sizes.items()}
    return {"bytes": sizes["all"], "text_bytes": text, "per_byte": per_byte, **facts}


def words(text: str) -> str:
    """Letters and digits alone, so that markup, quotes and line breaks do not count."""
    return " ".join(re.findall(r"\w+", text.lower()))


def is_right(passage: Hit | Passage, question: Question) -> bool:
    """Does it come from a document of the question, or from the source of that, and hold the words?"""
    source = str(passage.meta.get("document") or passage.id).partition("#")[0]
    bare, text = bare_name(source), words(f"{passage.title} {passage.text}")
    return any(
        f"/{bare}".endswith(f"/{bare_name(gold['document'])}") and words(gold["text"]) in text
        for gold in question["passages"]
    )


def bare_name(document: str) -> str:
    """Python's manual comes as HTML, and as the reStructuredText that it was made from."""
    return document.removesuffix(".html").removesuffix(".rst.txt")


def rank(found: Sequence[Hit | Passage], question: Question) -> int | None:
    """The rank of the first right passage, each passage counted once; None below the deepest."""
    once = list({passage.id: passage for passage in found}.values())[: max(DEPTHS)]
    return next((n for n, passage in enumerate(once, 1) if is_right(passage, question)), None)


def stored(engine: Engine, asked: Sequence[Question]) -> int:
    """Questions of which the index holds a right passage at all."""
    assert engine.index is not None
    left = list(asked)
    for part in engine.index.refresh().scan():
        passage = Passage(id=part.id, text=part.text, title=part.title, meta=part.meta)
        left = [question for question in left if not is_right(passage, question)]
    return len(asked) - len(left)


def shares(ranks: Sequence[int | None]) -> dict[str, float]:
    """How many are right within each depth, and the mean reciprocal rank."""
    counts = {f"in_{depth}": sum(r is not None and r <= depth for r in ranks) for depth in DEPTHS}
    return {**counts, "mrr@10": round(float(np.mean(gains(ranks))), 4)}


def gains(ranks: Sequence[int | None]) -> list[float]:
    """Reciprocal ranks."""
    return [1 / r if r else 0.0 for r in ranks]


def compare(ours: Sequence[int | None], theirs: Sequence[int | None]) -> dict[str, Any]:
    """Paired tests: of which comes first (two-sided sign test), and of reciprocal ranks (bootstrap)."""
    better = sum((a or 99) < (b or 99) for a, b in zip(ours, theirs, strict=True))
    worse = sum((a or 99) > (b or 99) for a, b in zip(ours, theirs, strict=True))
    least = sum(comb(better + worse, n) for n in range(min(better, worse) + 1))
    p = min(1.0, 2 * least / 2 ** (better + worse))
    gain = paired_difference(gains(ours), gains(theirs), resamples=20_000)
    mean, *interval = (round(value, 4) for value in gain)
    found = {"better": better, "worse": worse, "sign_test_p": round(p, 5)}
    return {**found, "mrr_gain": mean, "mrr_gain_95": interval}


def answered(text: str, question: Question) -> bool:
    """Is it one of the accepted answers, or one of them with few words more?"""
    given = f" {normalise_answer(text)} "
    for gold in map(normalise_answer, question["answers"]):
        if f" {gold} " in given and len(given.split()) <= len(gold.split()) + EXTRA:
            return True
    return False


def answers(engine: Engine, asked: Sequence[Question]) -> dict[str, Any]:
    """Answers right first and in three, how long that took, and the scores of first ones."""
    first = three = 0
    times, scores = [], dict[str, list[float]](right=[], wrong=[])
    auto = {"right": 0, "wrong": 0, "silent": 0}
    for question in asked:
        found = engine.ask(question["question"], 3, threshold=0)
        right = [answered(answer.text, question) for answer in found]
        first, three = first + any(right[:1]), three + any(right)
        times.append(found.timing.total_ms)
        for answer in found[:1]:
            scores["right" if right[0] else "wrong"].append(round(answer.score, 4))
        shown = engine.ask(question["question"], 1).items
        auto["silent" if not shown else "right" if right[0] else "wrong"] += 1
    report = {"in_1": first, "in_3": three, "auto": auto, "scores": scores}
    return {"answers": report, "ask_time": percentiles(times)}


def unanswerable(engine: Engine, asked: Sequence[Question]) -> dict[str, Any]:
    """Questions that no manual answers: how many get no answer, and the score of what the others get."""
    found = [engine.ask(q["question"], 1, threshold=0) for q in asked]
    auto = [engine.ask(q["question"], 1) for q in asked]
    return {
        "questions": len(asked),
        "withheld": sum(not len(answers) for answers in found),
        "withheld_auto": sum(not len(answers) for answers in auto),
        "scores": [round(answers[0].score, 4) for answers in found if len(answers)],
    }


if __name__ == "__main__":
    main()
