"""The read path: retrieve, fetch, cross, decide. Passages come from an index, from the caller, or both."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from decoupled import candidates, cross, pool, segment, spans
from decoupled.candidates import FirstStage
from decoupled.errors import InputError
from decoupled.index import Index
from decoupled.manifest import is_index
from decoupled.outputs import Answer, Answers, Hit, Hits, Label, Timing
from decoupled.pool import Pool, as_passages
from decoupled.runtime.open import open_runtime
from decoupled.spec import HeadKind, ModelSpec
from decoupled.states import Encoding
from decoupled.store.base import Where
from decoupled.text import Passage

if TYPE_CHECKING:
    from decoupled.codec import Codec
    from decoupled.model import Model
    from decoupled.runtime.base import Runtime
    from decoupled.store.base import Snapshot

Floats = npt.NDArray[np.float64]

CANDIDATES = 100
"""Records that the first stage hands to the cross component."""


class Engine:
    """Searches, reranks, answers and classifies with one model, which is loaded once.

    With an index, candidates and their states come from it. With a model alone, texts are given.
    """

    def __init__(self, source: Index | Model | str | Path, *, runtime: str = "auto") -> None:
        if isinstance(source, str | Path) and is_index(source):
            source = Index.open(source, runtime=runtime)
        self.index = source if isinstance(source, Index) else None
        self._runtime = None if isinstance(source, Index) else open_runtime(source, name=runtime)

    @property
    def runtime(self) -> Runtime:
        """The loaded model; that of the index, which may get its codec later."""
        if self._runtime is not None:
            return self._runtime
        assert self.index is not None
        return self.index.runtime

    @property
    def spec(self) -> ModelSpec:
        """The model's spec."""
        return self.runtime.spec

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        first_stage: FirstStage | Literal["auto"] = "auto",
        candidates: int = CANDIDATES,
        where: Where | None = None,
        raw: bool = False,
    ) -> Hits:
        """The `k` best passages of the index for a query.

        `where` filters by metadata, e.g. `{"year": {"gte": 1990}, "lang": ["en", "de"]}`. Scores are
        probabilities, or logits with `raw`.
        """
        self.spec.head("rank")
        clock = Clock()
        encoding = self._query(query, clock)
        found = self._retrieve(query, encoding, first_stage, max(candidates, k), where, clock)
        return self._ranked(query, encoding, found, k, raw, clock)

    def rerank(
        self,
        query: str,
        *,
        ids: Sequence[str] = (),
        texts: Sequence[str | Passage] = (),
        k: int | None = None,
        raw: bool = False,
    ) -> Hits:
        """Passages of the index by id, texts, or both, most relevant first.

        Texts are encoded on the fly; a plain string gets its place in the list as id. A long text counts
        with its best window.
        """
        self.spec.head("rank")
        clock = Clock()
        encoding = self._query(query, clock)
        return self._ranked(
            query, encoding, self._given(encoding, ids, texts, clock), k, raw, clock
        )

    def ask(
        self,
        question: str,
        k: int = 3,
        *,
        ids: Sequence[str] = (),
        texts: Sequence[str | Passage] = (),
        first_stage: FirstStage | Literal["auto"] = "auto",
        candidates: int = CANDIDATES,
        where: Where | None = None,
        threshold: float = 0.0,
    ) -> Answers:
        """The best answers: spans of the candidates, or of the given ids and texts.

        A score is a span's share of the weight of all spans of all candidates (and of no answer, for a head
        that learnt it), so scores compare across passages. Answers below `threshold` are left out, and all
        of them when no answer is likelier.
        """
        self.spec.head("span")
        clock = Clock()
        encoding = self._query(question, clock)
        if ids or texts or self.index is None:
            found = self._given(encoding, ids, texts, clock)
        else:
            found = self._retrieve(question, encoding, first_stage, candidates, where, clock)
        answers, weight = self._answers(encoding, found, k, clock)
        kept = tuple(a for a in answers if a.score >= threshold)[:k]
        return Answers(query=question, items=kept, timing=clock.timing(), weight=weight)

    def classify(self, pairs: Sequence[tuple[str, str]], *, raw: bool = False) -> list[Label]:
        """The class of each (query, passage) pair; a long passage counts with its most certain window."""
        labels = self.spec.head("classes").labels
        found = []
        for values in self.pair_logits(pairs, "classes"):
            scores = values if raw else softmax(values)
            best = int(values.argmax())
            shares = {name: float(s) for name, s in zip(labels, scores, strict=True)}
            found.append(Label(label=labels[best], score=float(scores[best]), scores=shares))
        return found

    def pair_logits(self, pairs: Sequence[tuple[str, str]], head: HeadKind) -> list[Floats]:
        """The logits of one head for each pair, in order; pairs with the same query share its pass."""
        by_query: dict[str, list[int]] = {}
        for number, (query, _) in enumerate(pairs):
            by_query.setdefault(query, []).append(number)
        found: dict[int, Floats] = {}
        clock = Clock()
        for query, numbers in by_query.items():
            encoding = self._query(query, clock)
            given = self._given(encoding, (), [pairs[n][1] for n in numbers], clock)
            logits = cross.score(self.runtime, encoding.states, given.states, (head,))[head].values
            certain = logits.max(-1).astype(np.float64)
            for window, excerpt in given.best(certain, None):
                found[numbers[int(excerpt.id)]] = logits[window].astype(np.float64)
        return [found[n] for n in range(len(pairs))]

    def candidates(
        self,
        query: str,
        count: int = CANDIDATES,
        *,
        first_stage: FirstStage | Literal["auto"] = "auto",
    ) -> list[Passage]:
        """What the first stage alone finds, best first: windows, as passages."""
        clock = Clock()
        found = self._retrieve(query, self.encode_query(query), first_stage, count, None, clock)
        return [
            Passage(id=e.id, text=e.text, title=e.title, meta=e.meta)
            for _, e in found.describe(range(len(found)))
        ]

    def encode_query(self, query: str) -> Encoding:
        """States and vector of a query."""
        return segment.encode(self.runtime, "query", [self.runtime.tokenizer.query(query)])

    # The stages ------------------------------------------------------------------------------------

    @property
    def _codec(self) -> Codec | None:
        return self.index.codec if self.index else None

    def _snapshot(self) -> Snapshot | None:
        """The newest version of the index; None while nothing was added to it."""
        if self.index is None:
            raise InputError("this engine has a model but no index; give it an index, or texts")
        return self.index.refresh()

    def _query(self, query: str, clock: Clock) -> Encoding:
        with clock.measure("encode_ms"):
            return self.encode_query(query)

    def _retrieve(
        self,
        query: str,
        encoding: Encoding,
        stage: FirstStage | Literal["auto"],
        count: int,
        where: Where | None,
        clock: Clock,
    ) -> Pool:
        with clock.measure("retrieve_ms"):
            snapshot = self._snapshot()
            if snapshot is None:
                return Pool(states=encoding.states.select([]))
            if stage == "auto":
                stage = "hybrid" if self.spec.vector else "lexical"
            rows = candidates.find(snapshot, stage, query, encoding.vectors[0], count, where).rows
        with clock.measure("fetch_ms"):
            return pool.of_rows(snapshot, rows)

    def _given(
        self,
        encoding: Encoding,
        ids: Sequence[str],
        texts: Sequence[str | Passage],
        clock: Clock,
    ) -> Pool:
        """Stored passages by id and texts of the caller, in one pool."""
        with clock.measure("encode_ms"):
            length = len(encoding.states.values)
            fresh = pool.of_texts(
                self.runtime, as_passages(texts), codec=self._codec, query_length=length
            )
        if not ids:
            return fresh
        with clock.measure("fetch_ms"):
            snapshot = self._snapshot()
            if snapshot is None:
                raise InputError(f"the index is empty, so it has no passage {ids[0]!r}")
            return pool.joined(pool.of_rows(snapshot, snapshot.locate(ids)), fresh)

    def _ranked(
        self, query: str, encoding: Encoding, found: Pool, k: int | None, raw: bool, clock: Clock
    ) -> Hits:
        with clock.measure("cross_ms"):
            logits = cross.score(self.runtime, encoding.states, found.states, ("rank",))["rank"]
            values = logits.values[:, 0].astype(np.float64)
            scores = values if raw else sigmoid(values)
        with clock.measure("fetch_ms"):
            hits = tuple(
                Hit(
                    id=excerpt.id,
                    score=float(scores[window]),
                    text=excerpt.text,
                    title=excerpt.title,
                    meta=excerpt.meta,
                    offset=excerpt.start,
                )
                for window, excerpt in found.best(values, k)
            )
        return Hits(query=query, items=hits, timing=clock.timing())

    def _answers(
        self, encoding: Encoding, found: Pool, k: int, clock: Clock
    ) -> tuple[list[Answer], float]:
        """Answers, best first, none overlapping a better one of its passage, and the weight of all spans."""
        if not len(found):
            return [], -np.inf
        text = self.spec.text
        ends = {"before": len(text.passage_prefix), "after": len(text.passage_suffix)}
        with clock.measure("cross_ms"):
            null = self.spec.head("span").null
            ranked = not null and any(h.kind == "rank" for h in self.spec.heads)
            heads: tuple[HeadKind, ...] = ("span", "rank") if ranked else ("span",)
            logits = cross.score(self.runtime, encoding.states, found.states, heads)
            scores = spans.window_scores(logits["span"], **ends)
            # What makes spans of different passages comparable: the odds against no answer where the head
            # learnt it, else the relevance of the passage (measured: benchmarks/starter.py).
            shift = -scores.null if null else np.zeros(len(found))
            if ranked:
                shift = np.log(sigmoid(logits["rank"].values[:, 0].astype(np.float64)))
            weight = float(np.logaddexp.reduce(scores.total + shift))
            total = float(np.logaddexp(weight, 0.0)) if null else weight
            order = np.argsort(-(scores.best + shift), kind="stable")[: 4 * k + 4].tolist()
        with clock.measure("fetch_ms"):
            described = found.describe(order)
        answers = []
        for window, (_, excerpt) in zip(order, described, strict=True):
            for span in spans.best_spans(logits["span"][window][1:], **ends, k=k):
                start = int(excerpt.offsets[span.first, 0])
                end = int(excerpt.offsets[span.last, 1])
                share = span.score + shift[window]
                if end > start and not (null and share < 0):
                    answers.append(
                        Answer(
                            text=excerpt.text[start:end],
                            score=float(np.exp(share - total)),
                            start=start,
                            end=end,
                            passage_id=excerpt.id,
                            passage=excerpt.text,
                            offset=excerpt.start,
                        )
                    )
        return merge_overlapping(sorted(answers, key=lambda a: -a.score)), weight


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
