"""The read path: queries through the stages, over an index, over texts of the caller, or both."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from decoupled.errors import DecoupledError, InputError
from decoupled.index.index import Index
from decoupled.index.manifest import describe, is_index
from decoupled.index.store.base import Snapshot, Where
from decoupled.index.store.state_cache import MemoryUsage, StateCache
from decoupled.model import annex
from decoupled.model.codec import Codec
from decoupled.model.jsonable import JsonObject
from decoupled.model.spec import ModelSpec, Side
from decoupled.model.tokens import Passage
from decoupled.runtime.base import Cancellable, Runtime
from decoupled.runtime.open import open_runtime
from decoupled.search import tracing
from decoupled.search.answers import Outcome, noted, outcome
from decoupled.search.blend import blend, worth_reading
from decoupled.search.cross import cross_searches
from decoupled.search.fetch import DeviceCache, Fetched, TextCache, TextEncoder, fetch
from decoupled.search.first_stage import Candidates, embed, first_stage
from decoupled.search.late_interaction import LateInteraction, open_late_interaction, per_result
from decoupled.search.prune import Pruner
from decoupled.search.request import (
    CANDIDATES,
    Request,
    SearchRun,
    Stage,
    as_ids,
    as_passages,
    attempt,
    encode_queries,
    live,
    timed,
)
from decoupled.search.results import Answers, Hits, Label, Labels, with_links

if TYPE_CHECKING:
    from decoupled.model.model import Model

R = TypeVar("R", Hits, Answers, Labels)


class Engine:
    """Searches, reranks, answers and classifies with one model, which is loaded once.

    With an index, candidates and their states come from it. With a model or a runtime alone, texts are given.
    The cross component reads what late interaction finds best of what a search found: as many as its model
    says is enough (`LateSpec.keep`), else all. `cascade` is another share of the candidates, such as 0.3, or
    "all". `memory` is a budget such as "2GB" within which states that were read stay in memory; `warm` reads
    them ahead; `remember`, bytes for states of texts of the caller. `first_stage` may be a search elsewhere:
    a function of query and count that gives ids, best first, or (id, score); ids that the index does not have
    are named in the `notes` of the results.
    """

    def __init__(
        self,
        source: Index | Model | Runtime | str | Path,
        *,
        runtime: str = "auto",
        cascade: LateInteraction | float | Literal["all"] | None = None,
        memory: int | str | None = None,
        remember: int = 0,
        first_stage: Stage = "auto",
    ) -> None:
        if isinstance(source, str | Path) and is_index(source):
            source = Index.open(source, runtime=runtime)
        if not isinstance(source, Index | Runtime):
            source = open_runtime(source, name=runtime)
        self._source, self._process = source, os.getpid()
        self.index = source if isinstance(source, Index) else None
        self._cascade, self._first_stage = cascade, first_stage
        self.cascade = open_late_interaction(cascade, source)
        self.text_cache = TextCache(remember) if remember else None
        self._state_cache = StateCache(memory) if memory is not None else None
        self._device_cache: DeviceCache | None = None
        self.links, self.route = True, ""

    def __repr__(self) -> str:
        return f"Engine({describe(self.spec) if self.index is None else self.index})"

    def reopened(self) -> Engine:
        """A new engine like this one, over the index that is at its path now; this one stays as it is."""
        assert self.index is not None
        engine = Engine(
            self.index.reopen(),
            cascade=self._cascade,
            memory=self._state_cache.budget if self._state_cache is not None else None,
            remember=self.text_cache.limit if self.text_cache is not None else 0,
            first_stage=self._first_stage,
        )
        engine.links, engine.route = self.links, self.route
        return engine

    @property
    def runtime(self) -> Runtime:
        """The loaded model; that of the index, which is another one once its codec is fitted."""
        # The threads of the model and the store do not survive a fork: a call would wait forever.
        if self._process != os.getpid():
            raise DecoupledError(
                "this engine was opened before the process was forked; open it in each process, after that"
            )
        return self._source.runtime if isinstance(self._source, Index) else self._source

    @property
    def memory(self) -> MemoryUsage | None:
        """Size of the cache of states and how often it spared a read; None without a budget."""
        return self._state_cache.usage if self._state_cache is not None else None

    def warm(self, progress: Callable[[MemoryUsage], None] | None = None) -> MemoryUsage | None:
        """Read states into memory until all are there or the budget is full, and on to a GPU if there is one.

        Passages that are added later are read through the store until it is called again.
        """
        snapshot = self._snapshot()
        if self._state_cache is not None:
            self._state_cache.warm(snapshot, progress)
            self._device_cache = DeviceCache.fill(self.runtime, self._state_cache)
        return self.memory

    @property
    def spec(self) -> ModelSpec:
        """The model's spec."""
        return self.runtime.spec if self.index is None else self.index.spec

    def search(  # noqa: PLR0913 (the options of the command)
        self,
        query: str,
        k: int = 10,
        *,
        first_stage: Stage = "auto",
        candidates: int = CANDIDATES,
        where: Where | None = None,
        blend: float = 1.0,
        raw: bool = False,
        show_first_stage: bool = False,
        prune: float | Literal["auto"] | None = None,
        highlight: bool = False,
    ) -> Hits:
        """The `k` best passages of the index for a query.

        `where` filters by metadata, e.g. `{"year": {"gte": 1990}, "lang": ["en", "de"]}`. A model that learnt
        to adds BM25 and the cosine to its rank logit, `blend` times as much; 0 leaves them out. Scores are
        probabilities, or logits with `raw`. With `show_first_stage` each hit says where that had it. `prune`
        gives `pruned_text`: the sentences that matter with that probability or more, `auto` as measured;
        `highlight` the place of the one that matters most.
        """
        stage = {"first_stage": first_stage, "candidates": max(candidates, k), "where": where}
        shown = {"raw": raw, "show_first_stage": show_first_stage, "highlight": highlight}
        how: JsonObject = {**stage, **shown, "retrieve": True, "blend": blend, "prune": prune}
        request = Request(query=query, head="rank", k=k, **how)
        return self._result(request, Hits)

    def rerank(
        self,
        query: str,
        *,
        ids: Sequence[str] = (),
        texts: Sequence[str | Passage] = (),
        k: int | None = None,
        raw: bool = False,
        prune: float | Literal["auto"] | None = None,
        highlight: bool = False,
    ) -> Hits:
        """Passages of the index by id, texts, or both, most relevant first.

        Texts are encoded on the fly; a plain string gets its position in the list as id. A long text counts
        with its best window. `prune` and `highlight` are as in `search`.
        """
        passages = {"ids": as_ids(ids), "texts": as_passages(texts)}
        how: JsonObject = {**passages, "raw": raw, "prune": prune, "highlight": highlight}
        request = Request(query=query, head="rank", k=k, **how)
        return self._result(request, Hits)

    def ask(  # noqa: PLR0913 (the options of the command)
        self,
        question: str,
        k: int = 3,
        *,
        ids: Sequence[str] | None = None,
        texts: Sequence[str | Passage] | None = None,
        first_stage: Stage = "auto",
        candidates: int = CANDIDATES,
        where: Where | None = None,
        threshold: float | Literal["auto"] = "auto",
        hops: int = 1,
        prune: float | Literal["auto"] | None = None,
        highlight: bool = False,
    ) -> Answers:
        """The best answers: spans of the candidates, or of the given ids and texts; none where none is good.

        A score is the probability that the answer is right, for a model that was calibrated; else the share
        of the weight of all spans of all candidates (and of no answer, for a head that learnt it). Spans that
        say the same, as SQuAD compares answers, are one answer with all of them as `evidence`. Answers below
        `threshold` are under `rejected` instead: `auto` is the score that the model learnt from questions
        without an answer, 0 always answers. Those far less likely than the best are left out. From 2 `hops`
        on, the best and what they are linked to are read together. `prune` and `highlight` are as in
        `search`, of the passage of each answer.
        """
        retrieve = ids is None and texts is None and self.index is not None
        passages = {
            "ids": as_ids(ids or ()),
            "texts": as_passages(texts or ()),
            "retrieve": retrieve,
        }
        stage = {"first_stage": first_stage, "candidates": candidates, "where": where}
        shown = {"threshold": threshold, "prune": prune, "highlight": highlight}
        how: JsonObject = {**passages, **stage, **shown, "hops": hops}
        request = Request(query=question, head="span", k=k, **how)
        return self._result(request, Answers)

    def embed(self, texts: Sequence[str], *, side: Side = "passage") -> npt.NDArray[np.float32]:
        """`[P,V]`: the first-stage vector of each text, of length one; a long text counts in part."""
        return embed(self.runtime, [passage.text for passage in as_passages(texts)], side)

    def classify(self, pairs: Sequence[tuple[str, str]], *, raw: bool = False) -> list[Label]:
        """The class of each (query, passage) pair; a long passage counts with its most certain window."""
        self.spec.head("classes")
        by_query: dict[str, list[int]] = {}
        for number, (query, _) in enumerate(pairs):
            # Pairs of one query are one request, so that its states are computed once.
            by_query.setdefault(query, []).append(number)
        labels: dict[int, Label] = {}
        for query, numbers in by_query.items():
            texts = as_passages([pairs[n][1] for n in numbers])
            request = Request(query=query, head="classes", texts=texts, raw=raw)
            labels.update(zip(numbers, self._result(request, Labels), strict=True))
        return [labels[n] for n in range(len(pairs))]

    @tracing.span("decoupled.run")
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
        searches = self.score(requests, budget=budget, cancelled=cancelled)
        outcomes = [outcome(self.spec, search) for search in searches]
        # Windows of few passages were kept: enough others are only found by reading all.
        short = [
            search
            for search, hits in zip(searches, outcomes, strict=True)
            if search.all_windows and isinstance(hits, Hits) and len(hits) < (search.request.k or 0)
        ]
        for search in short:
            search.widen()
        cross_searches(self.spec, self._cancellable(cancelled), short, budget)
        again = {search: outcome(self.spec, search) for search in short}
        results = [again.get(s, result) for s, result in zip(searches, outcomes, strict=True)]
        if any(search.request.prunes for search in searches):
            pruner = Pruner(self._cancellable(cancelled), self.index)
            results = [pruner.prune(s, result) for s, result in zip(searches, results, strict=True)]
        origins = self.index.origins if self.index and self.links else None
        results = [with_links(result, origins, self.route) for result in results]
        every = zip(searches, results, strict=True)
        return [noted(self.runtime.tokenizer, s, result) for s, result in every]

    def score(
        self,
        requests: Sequence[Request],
        *,
        budget: int | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> list[SearchRun]:
        """All stages of `run` but the last: the windows that each request is read with, and their logits."""
        searches = [SearchRun(request) for request in requests]
        for search in searches:
            with attempt(search):
                self.spec.reads(search.request.head)
                if self.index is not None and search.request.reads_index:
                    self.index.check_head(search.request.head)
        reading = [s for s in live(searches) if s.request.reads_index]
        if reading:  # before the model is used, which an index that was empty may change
            with timed("retrieve_ms", *reading), attempt(*reading):
                snapshot = self._snapshot()
        runtime = self._cancellable(cancelled)
        with timed("encode_ms", *searches):
            encodings = encode_queries(runtime, requests, budget)
        for search, encoding in zip(searches, encodings, strict=True):
            search.encoding = encoding
        # First stage and fetch: the stored candidates of each request, then texts that it brings.
        stored = dict.fromkeys(searches, Fetched())
        for search in live(reading):
            with attempt(search):
                with timed("retrieve_ms", search):
                    how = search.request, search.encoding.vectors, self.spec, self._first_stage
                    candidates = first_stage(snapshot, *how)
                search.rankings, search.unknown = candidates.rankings, candidates.unknown
                stored[search] = self._fetch(search, candidates, snapshot)
        titles, active = self.index is None or self.index.titles, live(searches)
        encoder = TextEncoder(runtime, self._codec, self.text_cache, budget, titles)
        joined = encoder.add_texts([(search, stored[search].windows) for search in active])
        # Late interaction, blend and choose: what the cross component reads of each request.
        for search, windows in zip(active, joined, strict=True):
            with attempt(search):
                search.windows = blend(search, self.spec, stored[search], windows)
                self._choose(search, stored[search])
        if self.spec.exits and (self.cascade is None or self.cascade.keep < 1):
            annex.load("exits.search").stop_early(self.spec, runtime, searches, budget)
        cross_searches(self.spec, runtime, searches, budget)
        return searches

    def candidates(
        self, query: str, count: int = CANDIDATES, *, first_stage: Stage = "auto"
    ) -> list[Passage]:
        """The candidates of the first stage alone, best first, each window as a passage."""
        how = Request(query=query, head="rank", retrieve=True, candidates=count)
        return self.passages(replace(how, first_stage=first_stage))

    def passages(self, request: Request) -> list[Passage]:
        """The passages that a request is read with: windows of the candidates, best first, then its texts."""
        excerpts = []
        if request.reads_index:
            snapshot = self._snapshot()
            (encoding,) = encode_queries(self.runtime, [request])
            how = request, encoding.vectors, self.spec, self._first_stage
            excerpts = snapshot.texts(first_stage(snapshot, *how).own)
        return [
            *(Passage(id=e.id, text=e.text, title=e.title, meta=e.meta) for e in excerpts),
            *as_passages(request.texts),
        ]

    @property
    def _codec(self) -> Codec | None:
        return self.index.codec if self.index is not None else None

    def _cancellable(self, cancelled: Callable[[], bool] | None) -> Runtime:
        return self.runtime if cancelled is None else Cancellable(self.runtime, cancelled)

    def _snapshot(self) -> Snapshot:
        """The newest version of the index."""
        if self.index is None:
            raise InputError("this engine has a model but no index; give it an index, or texts")
        assert self.runtime is not None  # which it says where it cannot be used
        return self.index.refresh()

    def _result(self, request: Request, kind: type[R]) -> R:
        """What `run` gives for one request; its error is raised."""
        (result,) = self.run([request])
        if isinstance(result, Exception):
            raise result
        assert isinstance(result, kind)
        return result

    def _fetch(self, search: SearchRun, candidates: Candidates, snapshot: Snapshot) -> Fetched:
        """Read the states of the candidates, from memory or the device where they are there."""
        with timed("fetch_ms", search):
            # Beside texts, which come from here, states on the device are of no use.
            device = None if search.request.texts else self._device_cache
            narrows = self._narrowing(search.request, len(candidates.own)) is not None
            return fetch(snapshot, candidates, self._state_cache, device, on_host=narrows)

    def _choose(self, search: SearchRun, stored: Fetched) -> None:
        """Keep the windows that are worth reading by the cross component; all where each must be scored."""
        how = self._narrowing(search.request, len(search.windows))
        if how is not None:
            with timed("cross_ms", search):
                full = self.spec.text.passage_tokens
                search.narrow(worth_reading(how, search, stored, self._codec, full))

    def _narrowing(self, request: Request, count: int) -> LateInteraction | None:
        """The late interaction that chooses among `count` windows of a request; None where all are read."""
        how = self._cascade_of(request)
        few = request.k is None or count <= request.k
        return None if how is None or how.keep == 1 or few else how

    def _cascade_of(self, request: Request) -> LateInteraction | None:
        """The late interaction of a request; None where every passage is read, as those of a caller are."""
        if request.read == "all" or request.hops > 1:
            return None
        return self.cascade or (self._own_cascade if request.retrieve else None)

    def reads(self, request: Request) -> int:
        """About how many candidates the cross component will read for a request that retrieves."""
        cascade = self._cascade_of(request)
        if cascade is None or request.k is None:
            return request.candidates
        return cascade.count(request.candidates, request.k, per_result(request.head))

    @cached_property
    def _own_cascade(self) -> LateInteraction | None:
        """The model's own late interaction, if it learnt what share of the candidates is enough."""
        return LateInteraction.of(self.runtime)
