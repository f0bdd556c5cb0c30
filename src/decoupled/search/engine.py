"""The read path: retrieve, fetch, cross, decide. Passages come from an index, from the caller, or both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.encode import encode_texts
from decoupled.index.index import Index
from decoupled.index.manifest import describe, is_index
from decoupled.index.store.base import Where, missing
from decoupled.index.store.state_cache import StateCache, Usage
from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import ModelSpec
from decoupled.model.states import Encoding
from decoupled.model.tokens import Passage
from decoupled.runtime.cancellation import Cancellable
from decoupled.runtime.open import open_runtime
from decoupled.search import batch, cross, pool
from decoupled.search import first_stage as candidates
from decoupled.search.batch import Job, Outcome
from decoupled.search.cache import Recent
from decoupled.search.decide import softmax
from decoupled.search.first_stage import FirstStage
from decoupled.search.late_interaction.look import Cascade, open_cascade
from decoupled.search.pool import as_ids, as_passages
from decoupled.search.request import CANDIDATES, Request
from decoupled.search.results import Answers, Hits, Label

if TYPE_CHECKING:
    from decoupled.index.store.base import Snapshot
    from decoupled.model.codec import Codec
    from decoupled.model.model import Model
    from decoupled.runtime.base import Runtime

_log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]


class Engine:
    """Searches, reranks, answers and classifies with one model, which is loaded once.

    With an index, candidates and their states come from it. With a model alone, texts are given.

    With a `cascade` the cross component reads only the share of the candidates that a cheap look finds best:
    a number such as 0.3, or `auto` for what `decoupled cascade` fitted to the index. `memory` is a budget
    such as "2GB" within which states that were read stay in memory; `warm` reads them ahead. `remember` is
    the bytes in which the states of texts of the caller are kept, in case they come again.
    """

    def __init__(
        self,
        source: Index | Model | str | Path,
        *,
        runtime: str = "auto",
        cascade: Cascade | float | Literal["auto"] | None = None,
        memory: int | str | None = None,
        remember: int = 0,
    ) -> None:
        if isinstance(source, str | Path) and is_index(source):
            source = Index.open(source, runtime=runtime)
        self.index = source if isinstance(source, Index) else None
        self._runtime = None if isinstance(source, Index) else open_runtime(source, name=runtime)
        self._resident = StateCache(memory) if memory is not None else None
        self._shelf: pool.Shelf | None = None
        self._wanted = cascade
        self.cascade = open_cascade(
            cascade, self.index.location if self.index is not None else None
        )
        self.recent = Recent(remember) if remember else None
        self._recent_codec: Codec | None = None

    @classmethod
    def over(cls, runtime: Runtime) -> Engine:
        """An engine without an index over a runtime that is already open."""
        engine = cls.__new__(cls)
        engine.index, engine._runtime = None, runtime
        engine._resident = engine._shelf = engine.cascade = engine._wanted = None
        engine.recent = engine._recent_codec = None
        return engine

    def __repr__(self) -> str:
        return f"Engine({describe(self.spec) if self.index is None else self.index})"

    def reopened(self) -> Engine:
        """An engine like this one over the index that is at its path now, which keeps nothing of the old one.

        This one stays as it is, for those who are using it.
        """
        assert self.index is not None
        fresh = copy(self)
        fresh.index = self.index.reopen()
        fresh._resident = None if self._resident is None else StateCache(self._resident.budget)
        fresh.recent = None if self.recent is None else Recent(self.recent.limit)
        fresh._shelf = fresh._recent_codec = None
        try:
            fresh.cascade = open_cascade(self._wanted, fresh.index.location)
        except InputError as error:
            _log.warning("every candidate is read from now on: %s", error)
            fresh.cascade = None
        return fresh

    @property
    def runtime(self) -> Runtime:
        """The loaded model; that of the index, which may get its codec later."""
        if self._runtime is not None:
            return self._runtime
        assert self.index is not None
        return self.index.runtime

    @property
    def memory(self) -> Usage | None:
        """What states are in memory and how often that spared a read; None without a budget."""
        return self._resident.usage if self._resident else None

    def warm(self, progress: Callable[[Usage], None] | None = None) -> Usage | None:
        """Read states into memory until all are there or the budget is full, and on to a GPU if there is one.

        Passages that are added later are read through the store until it is called again.
        """
        snapshot = self._snapshot()
        if self._resident is None or snapshot is None:
            return self.memory
        usage = self._resident.warm(snapshot, progress)
        self._shelf = pool.shelf_of(self.runtime, self._resident)
        return usage

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
        return self._hits(
            Request(
                query=query,
                head="rank",
                k=k,
                retrieve=True,
                first_stage=first_stage,
                candidates=max(candidates, k),
                where=where,
                raw=raw,
            )
        )

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
        given = as_passages(texts)
        return self._hits(
            Request(query=query, head="rank", k=k, ids=as_ids(ids), texts=tuple(given), raw=raw)
        )

    def ask(
        self,
        question: str,
        k: int = 3,
        *,
        ids: Sequence[str] | None = None,
        texts: Sequence[str | Passage] | None = None,
        first_stage: FirstStage | Literal["auto"] = "auto",
        candidates: int = CANDIDATES,
        where: Where | None = None,
        threshold: float = 0.0,
    ) -> Answers:
        """The best answers: spans of the candidates, or of the given ids and texts, however few.

        A score is a span's share of the weight of all spans of all candidates (and of no answer, for a head
        that learnt it), so scores compare across passages. Answers below `threshold` are left out, and all
        of them when no answer is likelier.
        """
        searched = ids is None and texts is None and self.index is not None
        (answers,) = self.run(
            [
                Request(
                    query=question,
                    head="span",
                    k=k,
                    retrieve=searched,
                    first_stage=first_stage,
                    candidates=candidates,
                    where=where,
                    ids=as_ids(ids or ()),
                    texts=tuple(as_passages(texts or ())),
                    threshold=threshold,
                )
            ]
        )
        if isinstance(answers, Exception):
            raise answers
        assert isinstance(answers, Answers)
        return answers

    def run(
        self,
        requests: Sequence[Request],
        *,
        budget: int | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> list[Outcome]:
        """Many requests in one pass, in order. One that cannot be served gets its error, and no other does.

        `budget` bounds the padded tokens of a batch, where memory is short. `cancelled` is asked before
        each batch; once it says yes, `Cancelled` is raised.
        """

        def runtime() -> Runtime:  # an index that was empty brings another one when it is read
            return self.runtime if cancelled is None else Cancellable(self.runtime, cancelled)

        jobs = [Job(request) for request in requests]
        batch.encode_queries(runtime(), jobs, budget)
        for job in jobs:
            with job.trying():
                self.spec.head(job.request.head)
                self._fetch(job)
        batch.encode_given(runtime(), jobs, self._codec, self._known(), budget)
        for job in jobs:
            with job.trying():
                self._narrow(job)
        batch.cross_all(runtime(), jobs, budget)
        found = [batch.result(self.spec, job) for job in jobs]
        # Windows of few passages were kept: enough others are only found by reading all.
        short = [n for n, job in enumerate(jobs) if job.falls_short(found[n])]
        if short:
            again = [jobs[n].widened() for n in short]
            batch.cross_all(runtime(), again, budget)
            for n, job in zip(short, again, strict=True):
                found[n] = batch.result(self.spec, job)
        return found

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
        for query, numbers in by_query.items():
            encoding = self.encode_query(query)
            texts = as_passages([pairs[n][1] for n in numbers])
            length = len(encoding.states.values)
            given = pool.of_texts(self.runtime, texts, codec=self._codec, query_length=length)
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
        request = Request(
            query=query, head="rank", retrieve=True, first_stage=first_stage, candidates=count
        )
        return self.passages(request)

    def passages(self, request: Request) -> list[Passage]:
        """What a request is read with: windows, as passages; those of the first stage best first."""
        job = Job(request)
        batch.encode_queries(self.runtime, [job], None)
        self._fetch(job)
        stored = [] if job.pool is None else job.pool.describe(range(len(job.pool)))
        return [
            Passage(id=e.id, text=e.text, title=e.title, meta=e.meta) for _, e in stored
        ] + as_passages(request.texts)

    def first_stage(self, name: FirstStage | Literal["auto"]) -> FirstStage:
        """What `auto` stands for: both where the model learnt vectors, words alone elsewhere."""
        if name == "auto":
            return "hybrid" if self.spec.vector else "lexical"
        return name

    def encode_query(self, query: str) -> Encoding:
        """States and vector of a query."""
        return encode_texts(self.runtime, "query", [self.runtime.tokenizer.query(query)])

    # The stages ------------------------------------------------------------------------------------

    @property
    def _codec(self) -> Codec | None:
        return self.index.codec if self.index is not None else None

    def _known(self) -> Recent | None:
        """The texts that were encoded lately, by the codec of today."""
        if self.recent is not None and self._codec is not self._recent_codec:
            self.recent.clear()
            self._recent_codec = self._codec
        return self.recent

    def _snapshot(self) -> Snapshot | None:
        """The newest version of the index; None while nothing was added to it."""
        if self.index is None:
            raise InputError("this engine has a model but no index; give it an index, or texts")
        return self.index.refresh()

    def _hits(self, request: Request) -> Hits:
        (hits,) = self.run([request])
        if isinstance(hits, Exception):
            raise hits
        assert isinstance(hits, Hits)
        return hits

    def _fetch(self, job: Job) -> None:
        """Find the stored passages of a request, and read their states."""
        request, clock = job.request, job.clock
        if not request.retrieve and not request.ids:
            return
        with clock.measure("retrieve_ms"):
            snapshot = self._snapshot()
            if snapshot is None:
                if request.ids:
                    raise missing(request.ids)
                return
            if request.retrieve:
                stage = self.first_stage(request.first_stage)
                vector = job.encoding.vectors[0]
                rows = candidates.find(
                    snapshot, stage, request.query, vector, request.candidates, request.where
                ).rows
            else:
                rows = snapshot.locate(request.ids)
        with clock.measure("fetch_ms"):
            # Beside texts, which come from here, the runtime's own memory is of no use.
            shelf = None if request.texts else self._shelf
            job.pool = pool.of_rows(snapshot, rows, self._resident, shelf)

    def _narrow(self, job: Job) -> None:
        """Leave to the cross component what looks worth reading; all where every one must get its score."""
        found, k = job.pool, job.request.k
        if self.cascade is None or k is None or job.error or found is None or len(found) <= k:
            return
        with job.clock.measure("cross_ms"):
            codes = found.codes(self._resident)
            scores = self.cascade.scores(job.encoding.states, codes, self._codec)
            job.narrow(self.cascade.choose(scores, k))
