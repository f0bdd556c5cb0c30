r"""When `ask` gives no answer: learnt and judged where half of the questions have none in the corpus.

    python examples/starter/knowing.py fit --model MODEL --data DATA
    python examples/starter/knowing.py measure --data DATA --manuals MANUALS --json FILE

`fit` takes every second passage that answers a held-out question of SQuAD and of Natural Questions out of its
corpus, asks the questions of both halves, and keeps in MODEL what an answer's score means and below which
score there is none. `measure` asks other questions, none of which was fitted to: of SQuAD's development set,
with whole articles and single paragraphs taken out; of MultiSpanQA and MedQuAD, with every second passage
taken out; and, where MANUALS is a folder of Debian's manuals (`postgresql-doc`, `git-doc`, `sqlite3-doc`,
unpacked), those of `manual_questions.jsonl`, some of which no manual answers. WORK keeps the indexes.
"""

import argparse
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import sets
from figures import indexed, told

from decoupled import Engine, Passage, read_passages
from decoupled.lab.script import options, write_report
from decoupled.measure.metrics import best_over
from decoupled.measure.pairs import Pair, Span
from decoupled.methods.scores.answers import choose_answers, read_questions
from decoupled.methods.scores.calibration import calibration_error, reliability
from decoupled.methods.scores.fields import field_of, with_absent
from decoupled.methods.scores.scoring import spread
from decoupled.model.folder import starter_model, write_scoring
from decoupled.model.progress import counter
from decoupled.model.scoring import Scoring
from decoupled.runtime import cpu
from decoupled.search.answers import normalise_answer
from decoupled.search.request import CANDIDATES

MANUALS = {"postgresql": "postgresql-doc*", "git": "git-doc*", "sqlite": "sqlite3*"}
SURE = 0.85
"""Of answers with at least this score, as many should be right."""
EXTRA = 5
"""Words that an answer from a manual may have beside an accepted one."""


@dataclass(frozen=True, kw_only=True)
class TestQuestion:
    """A question with what counts as right: these texts, or any span of these passages."""

    question: str
    answers: tuple[str, ...] = ()
    passages: frozenset[str] = frozenset()
    """Ids of the passages that answer, where the data mark no spans."""

    @property
    def answerable(self) -> bool:
        """Whether the corpus answers it."""
        return bool(self.answers or self.passages)

    def accepts(self, answer: Any) -> bool:
        """Whether an answer is right: half of its words, or the passage where only that is known."""
        if not self.answers:
            return any(place.passage_id in self.passages for place in answer.evidence)
        if best_over(self.answers, answer.text)[1] > 0.5:
            return True
        text = f" {normalise_answer(answer.text)} "
        golds = filter(None, map(normalise_answer, self.answers))
        return any(f" {g} " in text and len(text.split()) <= len(g.split()) + EXTRA for g in golds)


def main() -> None:
    """Run what the command line names."""
    defaults = {"model": str(starter_model()), "data": Path("data"), "limit": 100, "manuals": Path}
    args = options(__doc__, "fit", "measure", **defaults, runtime="auto", keep_tokens=1.0)
    cpu.protect()
    args.work = args.work or Path("work")
    args.work.mkdir(parents=True, exist_ok=True)
    write_report(
        args, {"model": Path(args.model).name, **(fit if args.what == "fit" else measure)(args)}
    )


def fit(args: argparse.Namespace) -> dict[str, Any]:
    """Learn what scores of answers in retrieved passages mean, and keep it in the model's folder."""
    squad = replace(sets.squad_development(args.data), passages=sets.squad_corpus(args.data))
    data = [with_absent(one) for one in (squad, natural_questions(args.data))]
    engines = [indexed(args, f"knowing-fit-{one.name}", one.passages) for one in data]
    read = []
    for engine, one in zip(engines, data, strict=True):
        pairs = spread([pair for pair in one.pairs if pair.answers], 4 * args.limit)
        absent = spread(one.absent, 4 * args.limit)
        step = counter(told, 2 * len(pairs) + 2 * len(absent))
        read += read_questions(engine, pairs, absent, CANDIDATES, step)
    before = engines[0].spec.scoring or Scoring()
    retrieved = [question for question in read if question.retrieved]
    learnt, figures = choose_answers(engines[0].spec, retrieved, before, [before.answer_rank])
    # All else stays, so that what other figures say of the model holds.
    write_scoring(args.model, replace(before, answer=learnt.answer, no_answer=learnt.no_answer))
    constants = vars(learnt.answer) if learnt.answer else None
    return {"answer": constants, "no_answer": learnt.no_answer, "error": figures["error"]}


def natural_questions(data: Path) -> Any:
    """The held-out web questions with short answers, over all passages of the file."""
    pairs, others = [], []
    for row in sets.rows(sets.found(data, "rank/nq.jsonl")):
        passage, query = cut(row["passage"]), row["query"]
        held = zlib.crc32(("nq" + query).encode()) % 10_000 < sets.HELD_OUT * 10_000
        spans = tuple(Span(text=answer, start=-1) for answer in row.get("answers", ()))
        if held and spans:
            pairs.append(Pair(query=query, passage=passage, answers=spans))
        else:
            others.append(passage)
    field, texts = field_of("nq", pairs), {pair.passage for pair in pairs}
    more = [text for text in dict.fromkeys(others) if text not in texts]
    extra = [Passage(id=f"other {n}", text=text) for n, text in enumerate(more)]
    return replace(field, passages=[*field.passages, *extra])


def cut(text: str) -> str:
    """The first 200 words, on one line."""
    return " ".join(re.sub(r"\s+", " ", text).split()[:200])


# Judging ------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Each corpus with questions that it answers and as many that it does not."""
    corpora = {"squad": squad(args.data)}
    corpora |= {name: ranked(args.data, name) for name in ("multispanqa", "medquad")}
    if args.manuals is not None:
        corpora |= {name: manual(args.manuals, name) for name in MANUALS}
    report = {}
    for name, (passages, questions) in corpora.items():
        engine = indexed(args, f"knowing-{name}", passages)
        report[name] = {"passages": len(passages), **judge(engine, questions)}
    return {"corpora": report}


def squad(data: Path) -> tuple[list[Passage], list[TestQuestion]]:
    """Every paragraph of SQuAD but some of its development set, and questions of that set.

    Of every fourth article all paragraphs are taken out; of the next one, every second.
    """
    train = read_articles(data, "train")
    gone, by_kind = set[str](), dict[bool, list[TestQuestion]]({True: [], False: []})
    texts = dict.fromkeys(text for article in train for text, _ in article)
    for number, article in enumerate(read_articles(data, "dev")):
        for number_in, (text, questions) in enumerate(article):
            out = number % 4 == 0 or (number % 4 == 1 and number_in % 2 == 1)
            (gone.add(text) if out else texts.setdefault(text))
            for question, answers in questions:
                one = TestQuestion(question=question, answers=() if out else answers)
                by_kind[not out].append(one)
    passages = [Passage(id=str(n), text=t) for n, t in enumerate(texts) if t not in gone]
    return passages, [*spread(by_kind[True], 500), *spread(by_kind[False], 500)]


Article = list[tuple[str, list[tuple[str, tuple[str, ...]]]]]


def read_articles(data: Path, part: str) -> list[Article]:
    """Articles of SQuAD 1.1: their paragraphs with questions and answers."""
    text = "".join(sets.lines(sets.found(data, f"squad1/{part}-v1.1.json")))
    return [
        [
            (
                p["context"],
                [(q["question"], tuple(a["text"] for a in q["answers"])) for q in p["qas"]],
            )
            for p in article["paragraphs"]
        ]
        for article in json.loads(text)["data"]
    ]


def ranked(data: Path, name: str, each: int = 150) -> tuple[list[Passage], list[TestQuestion]]:
    """Questions that were not trained on, with the passages of every second one taken out."""
    texts: dict[str, int] = {}
    own: dict[str, set[int]] = {}
    spans: dict[str, list[str]] = {}
    for row in sets.rows(sets.found(data, f"rank/{name}.jsonl")):
        number = texts.setdefault(cut(row["passage"]), len(texts))
        own.setdefault(row["query"], set()).add(number)
        if "labels" in row:
            spans.setdefault(row["query"], []).extend(
                labelled(row["passage"].split(), row["labels"])
            )
    share = sets.HELD_OUT if name == "medquad" else 1.0
    held = [q for q in own if zlib.crc32((name + q).encode()) % 10_000 < share * 10_000]
    held = spread(held, 2 * each)
    gone = {number for query in held[1::2] for number in own[query]}
    questions = [TestQuestion(question=query) for query in held[1::2]]
    for query in held[::2]:
        if not own[query] & gone:
            ids = frozenset(map(str, own[query]))
            questions.append(
                TestQuestion(question=query, answers=tuple(spans.get(query, ())), passages=ids)
            )
    return [Passage(id=str(n), text=t) for t, n in texts.items() if n not in gone], questions


def labelled(tokens: Sequence[str], labels: str) -> list[str]:
    """The spans that letters mark: B begins one, I goes on."""
    spans: list[list[str]] = []
    for token, label in zip(tokens, labels, strict=False):
        if label == "B":
            spans.append([token])
        elif label == "I" and spans:
            spans[-1].append(token)
    return [" ".join(span) for span in spans]


def manual(folder: Path, name: str) -> tuple[list[Passage], list[TestQuestion]]:
    """A manual's pages, with questions about it and questions that it does not answer."""
    files = sorted(f for path in folder.glob(f"**/{MANUALS[name]}") for f in path.rglob("*.html"))
    rows = sets.rows(Path(__file__).with_name("manual_questions.jsonl"))
    questions = [
        TestQuestion(question=row["question"], answers=tuple(row["answers"]))
        for row in rows
        if row["manual"] in (name, "any")
    ]
    return list(read_passages(*dict.fromkeys(map(str, files)))), questions


def judge(engine: Engine, questions: Sequence[TestQuestion]) -> dict[str, Any]:
    """What the rule does: whom it silences, and whether scores are what they say."""
    scores, right = [], []
    for number, one in enumerate(questions):
        answers = engine.ask(one.question, threshold=0)
        scores.append(answers[0].score if len(answers) else 0.0)
        right.append(len(answers) > 0 and one.accepts(answers[0]))
        told(number, len(questions))
    p, good = np.array(scores), np.array(right)
    none = np.array([not one.answerable for one in questions])
    least = (engine.spec.scoring or Scoring()).answer_threshold(passages_given=False) or 0.0
    answered, sure = p >= least, p >= SURE
    # F1 of answering: of answers that are given, and of questions that have one, how many are right.
    f1 = 2 * (answered & good).sum() / max(1, answered.sum() + (~none).sum())
    return {
        "questions": len(questions),
        "without_answer": int(none.sum()),
        "right_when_always_answered": int(good.sum()),
        "threshold": round(least, 4),
        "f1_of_answering": round(float(f1), 4),
        "f1_when_always_answered": round(float(2 * good.sum() / (len(p) + (~none).sum())), 4),
        "right_kept": share(answered[good]),
        "silenced": share(~answered[none]),
        "right_kept_at_80_silenced": share(p[good] > np.quantile(p[none], 0.8)),
        "calibration_error": round(calibration_error(reliability(p, good)), 4),
        "sure": int(sure.sum()),
        "sure_right": share(good[sure]),
        "reliability": [one.to_json() for one in reliability(p, good)],
    }


def share(flags: Any) -> float | None:
    """The share of true values; None of nothing."""
    return round(float(np.mean(flags)), 4) if len(flags) else None


if __name__ == "__main__":
    main()
