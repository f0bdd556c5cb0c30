"""The read path: retrieve, fetch, cross, decide. Passages come from an index, from the caller, or both."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from decoupled import cross, segment, spans
from decoupled.errors import InputError
from decoupled.outputs import Answer, Answers, Hit, Hits, Label, Timing
from decoupled.runtime.open import open_runtime
from decoupled.spec import HeadKind, ModelSpec
from decoupled.states import States
from decoupled.text import Passage, Window

if TYPE_CHECKING:
    from decoupled.model import Model

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The windows that a query is scored against, and the passage that each belongs to."""

    passages: Sequence[Passage]
    windows: Sequence[Window]
    owners: npt.NDArray[np.int64]
    states: States


class Engine:
    """Reranks, answers and classifies with one model, which is loaded once."""

    def __init__(self, source: Model | str | Path, *, runtime: str = "auto") -> None:
        self.runtime = open_runtime(source, name=runtime)

    @property
    def spec(self) -> ModelSpec:
        """The model's spec."""
        return self.runtime.spec

    def rerank(
        self,
        query: str,
        *,
        texts: Sequence[str | Passage],
        k: int | None = None,
        raw: bool = False,
    ) -> Hits:
        """The passages, most relevant first; a long one counts with its best window.

        Scores are probabilities, or logits with `raw`. A plain string gets its place in the list as id.
        """
        self.spec.head("rank")
        clock = Clock()
        question, pool = self._prepare(query, as_passages(texts), clock)
        with clock.measure("cross_ms"):
            logits = cross.score(self.runtime, question, pool.states, ("rank",))["rank"]
        values = logits.values[:, 0].astype(np.float64)
        scores = values if raw else sigmoid(values)
        hits = []
        for window in best_windows(values, pool.owners)[:k]:
            passage, part = pool.passages[pool.owners[window]], pool.windows[window]
            hits.append(
                Hit(
                    id=passage.id,
                    score=float(scores[window]),
                    text=part.text,
                    title=passage.title,
                    meta=passage.meta,
                    offset=part.start,
                )
            )
        return Hits(query=query, items=tuple(hits), timing=clock.timing())

    def ask(
        self,
        question: str,
        *,
        texts: Sequence[str | Passage],
        k: int = 3,
        threshold: float = 0.0,
    ) -> Answers:
        """The best spans over all passages, with probabilities that compare across them.

        A probability is a span's share of the weight of all spans of all windows (and of no answer, for a
        head that learnt it). Answers below `threshold`, or below no answer, are left out.
        """
        self.spec.head("span")
        clock = Clock()
        states, pool = self._prepare(question, as_passages(texts), clock)
        with clock.measure("cross_ms"):
            logits = cross.score(self.runtime, states, pool.states, ("span",))["span"]
            text = self.spec.text
            ends = {"before": len(text.passage_prefix), "after": len(text.passage_suffix)}
            scores = spans.window_scores(logits, **ends)
            total = np.logaddexp.reduce(scores.total) if len(pool.windows) else -np.inf
            found = []
            for number in np.argsort(-scores.best, kind="stable")[: 4 * k + 4]:
                window = pool.windows[number]
                for span in spans.best_spans(logits[number][1:], **ends, k=k):
                    start = int(window.offsets[span.first, 0])
                    end = int(window.offsets[span.last, 1])
                    if end > start:
                        passage = pool.passages[pool.owners[number]]
                        found.append(
                            Answer(
                                text=window.text[start:end],
                                score=float(np.exp(span.score - total)),
                                start=start,
                                end=end,
                                passage_id=passage.id,
                                passage=window.text,
                                offset=window.start,
                            )
                        )
        answers = merge_overlapping(sorted(found, key=lambda a: -a.score))
        kept = tuple(a for a in answers if a.score >= threshold)[:k]
        return Answers(query=question, items=kept, timing=clock.timing())

    def classify(self, pairs: Sequence[tuple[str, str]], *, raw: bool = False) -> list[Label]:
        """The class of each (query, passage) pair; a long passage counts with its most certain window."""
        labels = self.spec.head("classes").labels
        found = []
        for values in self.pair_logits(pairs, "classes"):
            scores = values if raw else softmax(values)
            best = int(values.argmax())
            found.append(
                Label(
                    label=labels[best],
                    score=float(scores[best]),
                    scores={name: float(s) for name, s in zip(labels, scores, strict=True)},
                )
            )
        return found

    def pair_logits(self, pairs: Sequence[tuple[str, str]], head: HeadKind) -> list[Floats]:
        """The logits of one head for each pair, in order; pairs with the same query share its pass."""
        by_query: dict[str, list[int]] = {}
        for number, (query, _) in enumerate(pairs):
            by_query.setdefault(query, []).append(number)
        found: dict[int, Floats] = {}
        for query, numbers in by_query.items():
            passages = as_passages([pairs[n][1] for n in numbers])
            states, pool = self._prepare(query, passages, Clock())
            logits = cross.score(self.runtime, states, pool.states, (head,))[head].values
            certain = logits.max(-1).astype(np.float64)
            for window in best_windows(certain, pool.owners):
                found[numbers[pool.owners[window]]] = logits[window].astype(np.float64)
        return [found[n] for n in range(len(pairs))]

    def _prepare(
        self, query: str, passages: Sequence[Passage], clock: Clock
    ) -> tuple[States, Pool]:
        """States of the query and of every window of the passages."""
        with clock.measure("encode_ms"):
            tokenizer = self.runtime.tokenizer
            ids = tokenizer.query(query)
            states = segment.encode(self.runtime, "query", [ids]).states
            split = tokenizer.windows([p.text for p in passages])
            windows = [window for group in split for window in group]
            counts = np.fromiter((len(group) for group in split), np.int64, len(split))
            encoded = segment.encode(
                self.runtime, "passage", [w.ids for w in windows], query_length=len(ids)
            ).states
        owners = np.repeat(np.arange(len(passages), dtype=np.int64), counts)
        pool = Pool(passages=passages, windows=windows, owners=owners, states=encoded)
        return states, pool


class Clock:
    """Adds up where the milliseconds of one query go."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._spent: dict[str, float] = {}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Count the block towards a field of `Timing`."""
        begun = time.perf_counter()
        yield
        self._spent[stage] = self._spent.get(stage, 0.0) + (time.perf_counter() - begun) * 1e3

    def timing(self) -> Timing:
        """The sums so far, and the whole."""
        return Timing(**self._spent, total_ms=(time.perf_counter() - self._started) * 1e3)


def as_passages(texts: Sequence[str | Passage]) -> list[Passage]:
    """Plain strings become passages named by their place."""
    if isinstance(texts, str):
        raise InputError("texts is one string; give a list of strings")
    return [
        text if isinstance(text, Passage) else Passage(id=str(number), text=text)
        for number, text in enumerate(texts)
    ]


def best_windows(values: Floats, owners: npt.NDArray[np.int64]) -> list[int]:
    """The best window of each passage, best passages first; ties keep the given order."""
    seen: set[int] = set()
    best = []
    for window in np.argsort(-values, kind="stable"):
        if int(owners[window]) not in seen:
            seen.add(int(owners[window]))
            best.append(int(window))
    return best


def merge_overlapping(answers: Sequence[Answer]) -> list[Answer]:
    """Answers, best first, without those that overlap a better one in the same document."""
    kept: list[Answer] = []
    for answer in answers:
        start, end = answer.offset + answer.start, answer.offset + answer.end
        if not any(
            other.passage_id == answer.passage_id
            and start < other.offset + other.end
            and other.offset + other.start < end
            for other in kept
        ):
            kept.append(answer)
    return kept


def sigmoid(x: Floats) -> Floats:
    """The logistic function, without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


def softmax(x: Floats) -> Floats:
    """Shares that sum to one."""
    return np.exp(x - np.logaddexp.reduce(x))
