"""What the routes call: queries, changes and the comparison, each behind a batcher with its own thread."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from decoupled.errors import DecoupledError, IndexBusy, InputError, MissingRecord
from decoupled.index.index import Index
from decoupled.index.store.base import Snapshot
from decoupled.index.store.filters import conditions
from decoupled.index.stored import passage_and_around
from decoupled.model.folder import read_history
from decoupled.model.jsonable import JsonObject
from decoupled.model.spec import Side
from decoupled.model.tokens import Passage
from decoupled.runtime.open import open_joint
from decoupled.search import tracing
from decoupled.search.answers import Outcome
from decoupled.search.engine import Engine
from decoupled.search.request import Request
from decoupled.search.results import Answers, Hit, Hits
from decoupled.serve.http.batching import PACE, Batcher, IsCancelled, run_requests
from decoupled.serve.http.limits import Limits
from decoupled.serve.http.metrics import Metrics
from decoupled.serve.http.responses import SMALL, Json, LargeJson
from decoupled.serve.live import LiveEngine

T = TypeVar("T")

COMPARISONS = 8
"""Comparisons with the joint model that may wait: each takes as long as a cross-encoder takes."""
COMMIT = 1000
"""Tokens that take as long to encode as a change takes to commit."""
SLICES = 16
"""A long request looks whether others wait so many times while the runtime's best batch is computed."""
GIVES_WAY = 0.5
"""Seconds that a long request waits for shorter ones between its slices, so that it ends all the same."""

Requests = Sequence[Request]
"""The requests that one client sent together."""
Change = Callable[[Index], JsonObject]
"""A function that changes an index, and returns what it did."""
Clients = Sequence[Requests]
Outcomes = list[list[Outcome] | Exception]
"""The outcomes of each client's requests, or the error of all of them."""


@dataclass(frozen=True, kw_only=True)
class Computed:
    """The results of one client's requests."""

    results: list[Hits | Answers]
    waited: float
    """Seconds in the queue."""
    characters: int
    """Characters that the client sent to be read."""
    device: str

    @property
    def hits(self) -> list[Hits]:
        """The results of requests for hits."""
        return [r for r in self.results if isinstance(r, Hits)]

    @property
    def tokens(self) -> int:
        """Tokens that were read."""
        return sum(r.tokens for r in self.results)

    @property
    def size(self) -> int:
        """About as many characters as an answer may hold."""
        shown = (h.text if isinstance(h, Hit) else h.passage for r in self.results for h in r)
        return self.characters + sum(map(len, shown))

    @property
    def usage(self) -> dict[str, int]:
        """The number of tokens in the form of vLLM and Jina."""
        return {"prompt_tokens": self.tokens, "total_tokens": self.tokens}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of Text Embeddings Inference; times are in milliseconds."""
        worked = sum(r.timing.total_ms for r in self.results[:1])
        return {
            "x-compute-type": self.device,
            "x-compute-time": str(round(worked + self.waited * 1e3)),
            "x-compute-characters": str(self.characters),
            "x-compute-tokens": str(self.tokens),
            "x-queue-time": str(round(self.waited * 1e3)),
            "x-inference-time": str(round(worked)),
        }


class Service:
    """Runs queries, changes and comparisons of one engine, each kind in a batcher of its own."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.limits = limits
        self.metrics = Metrics()
        self._live = LiveEngine(engine)
        self.metrics.watch(lambda: self.engine)
        self._joint: tuple[Index, Engine] | None = None
        shared: JsonObject = {"limits": limits, "metrics": self.metrics}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="json")
        threads, patience = engine.runtime.callers, limits.queue_seconds
        self._reads = Batcher("read", self._read, threads=threads, patience=patience, **shared)
        # Texts must be encoded, and the first long request is too long to learn from.
        self._long = Batcher("long", self._read_long, pace=20 * PACE, **shared)
        self._comparisons = Batcher("joint", self._compare, queue=COMPARISONS, **shared)
        self._writes = Batcher("write", self._write, **shared)
        self._vectors = Batcher("embed", self._embed, **shared)

    @property
    def engine(self) -> Engine:
        """The engine of the index as it was last seen."""
        return self._live.engine

    @property
    def place(self) -> str:
        """Path or address of the index; empty without one."""
        return "" if self.engine.index is None else self.engine.index.location.name

    @property
    def window(self) -> int:
        """Tokens of a passage that the model reads at once."""
        text = self.engine.spec.text
        return text.passage_tokens - len(text.passage_prefix) - len(text.passage_suffix)

    @property
    def trained_split(self) -> bool:
        """Whether the weights were trained split; as a joint model they were then never trained."""
        if self.engine.index is None:
            return False
        source = self.engine.index.source
        history = read_history(source) if isinstance(source, Path) else source.history
        return any(step["did"] == "train" for step in history)

    async def run(self, requests: Requests, *, joint: bool = False) -> Computed:
        """The results of requests that one client sent; the first error is raised."""
        self._check(requests)
        # A batch is computed in a thread that knows nothing of the spans of its requests.
        requests = [replace(request, trace=tracing.here()) for request in requests]
        weight = sum(map(self._weight, requests))
        batcher = self._long if weight > self.limits.batch_tokens else self._reads
        batcher = self._comparisons if joint else batcher
        seconds = self.limits.seconds
        outcomes, waited = await batcher.submit(requests, weight=weight, seconds=seconds)
        results: list[Hits | Answers] = []
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            assert isinstance(outcome, Hits | Answers), "no route asks for labels"
            # A client that named its documents must get a score for each of them.
            if not request.retrieve:
                outcome.check_whole()
            self.metrics.stages(outcome.timing, waited)
            results.append(outcome)
        sent = sum(len(text) for request in requests for text in _texts(request))
        device = self.engine.runtime.name
        return Computed(results=results, waited=waited, characters=sent, device=device)

    async def in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Run in a thread what would hold up the event loop; one call at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    async def reply(self, content: Any, computed: Computed) -> Json:
        """The response to a query; a large one is written in a thread."""
        headers = computed.headers
        if computed.size <= SMALL:
            return Json(content, headers=headers)
        return await self.in_thread(partial(LargeJson, content, headers=headers))

    async def embed(self, texts: Sequence[str], side: Side) -> tuple[npt.NDArray[np.float32], int]:
        """The first-stage vectors of texts, and how many tokens they have."""
        self.limits.check("documents", "the number of texts", len(texts))
        self.check_texts(texts)
        weight, seconds = sum(map(len, texts)) // 4 + 8, self.limits.seconds
        vectors, _ = await self._vectors.submit((texts, side), weight=weight, seconds=seconds)
        return vectors, sum(self.engine.runtime.tokenizer.lengths(texts))

    async def add(self, passages: Sequence[Passage]) -> JsonObject:
        """Store passages: durable, and searchable, when this returns."""
        self.limits.check("documents", "the number of passages", len(passages))
        self.check_texts(text for p in passages for text in (p.text, p.title))
        self._check_ids(p.id for p in passages)

        def change(index: Index) -> JsonObject:
            done, ids = index.add(passages), [p.id for p in passages]
            counts = {n: getattr(done, n) for n in ("added", "unchanged", "replaced")}
            return {**counts, "ids": ids, "passages": len(index)}

        return await self._change(change, weight=sum(len(p.text) for p in passages) // 4)

    async def delete(self, ident: str) -> JsonObject:
        """Remove a passage: for good when this returns."""
        self._check_ids([ident])

        def change(index: Index) -> JsonObject:
            if not index.delete([ident]):
                raise MissingRecord(f"the index has no passage {ident!r:.200}")
            return {"deleted": 1, "passages": len(index)}

        return await self._change(change, weight=0)

    async def _change(self, change: Change, *, weight: int) -> JsonObject:
        _index(self.engine)
        weight, seconds = COMMIT + weight, self.limits.seconds
        done, _ = await self._writes.submit(change, weight=weight, seconds=seconds)
        return done

    async def info(self) -> JsonObject:
        """What `info --json` prints, with the index's name and questions to try on it."""
        engine = await asyncio.to_thread(self._newest)
        if engine.index is None:
            return {"kind": "model", "model": engine.spec.family}
        from decoupled.serve.http.page import (
            described,  # agents ask for none, and wait for no pages
        )

        return await asyncio.to_thread(described, engine.index)

    async def passage(self, ident: str) -> JsonObject:
        """A stored passage, and what stands around it in its document."""

        def read() -> JsonObject:
            passage, around = passage_and_around(self.newest(), ident)
            shown = [{**vars(p), "meta": dict(p.meta)} for p in (passage, *around)]
            return {**shown[0], "around": shown[1:]}

        return await asyncio.to_thread(read)

    def index(self) -> Index:
        """The index that is at its path now."""
        return _index(self._live.refresh())

    def newest(self) -> Snapshot:
        """The index as it is now."""
        return self.index().refresh()

    async def ready(self) -> None:
        """Raise unless the model is loaded, the index can be read, and a query would be let in."""
        self._reads.check(0, self.limits.seconds)
        await asyncio.to_thread(lambda: self._newest().runtime)

    async def cut(self, texts: list[str], tokens: int, *, keep_end: bool = False) -> list[str]:
        """Cut texts to at most `tokens` tokens, at their end or with `keep_end` at their beginning."""
        if max(map(len, texts), default=0) <= tokens:
            return texts
        cut = partial(self.engine.runtime.tokenizer.cut, keep_end=keep_end)
        return await self.in_thread(cut, texts, tokens)

    def check_texts(self, texts: Iterable[str]) -> None:
        """Raise a `RequestProblem` where a text is longer than the limit."""
        longest = max(map(len, texts), default=0)
        self.limits.check("characters", "the length of a text", longest)

    async def close(self) -> None:
        """Finish the requests that were accepted, then stop all threads."""
        reads = (self._reads, self._long, self._vectors)
        batchers = (*reads, self._comparisons, self._writes)
        await asyncio.gather(*(batcher.close() for batcher in batchers))
        self._thread.shutdown()

    # In the threads of the batchers ---------------------------------------------------------------

    def _read(self, clients: Clients, cancelled: IsCancelled) -> Outcomes:
        return self._computed(self._live.refresh(), clients, cancelled)

    def _read_long(self, clients: Clients, cancelled: IsCancelled) -> Outcomes:
        """Run long requests in slices, between which shorter ones go first."""

        def gives_way() -> bool:
            self.metrics.slices.inc()
            self._reads.idle.wait(GIVES_WAY)
            return cancelled()

        engine = self._live.refresh()
        return self._computed(engine, clients, gives_way, engine.runtime.token_budget // SLICES)

    def _compare(self, clients: Clients, cancelled: IsCancelled) -> Outcomes:
        """Run requests through the same weights unsplit, on the passages that the split model would read."""
        engine = self._live.refresh()
        rereads = [
            [replace(r, retrieve=False, ids=(), texts=tuple(engine.passages(r))) for r in requests]
            for requests in clients
        ]
        if engine.index is None:
            raise InputError("comparing with the joint model needs an index")
        # Loaded when first asked for, and again once the index was replaced.
        if self._joint is None or self._joint[0] is not engine.index:
            self._joint = engine.index, Engine(open_joint(engine.index.source))
        return self._computed(self._joint[1], rereads, cancelled)

    def _computed(
        self, engine: Engine, clients: Clients, cancelled: IsCancelled, budget: int | None = None
    ) -> Outcomes:
        flat = [request for requests in clients for request in requests]
        outcomes = iter(run_requests(engine, flat, cancelled, self.metrics, budget))
        return [[next(outcomes) for _ in requests] for requests in clients]

    def _write(self, changes: Sequence[Change], _: IsCancelled) -> list[JsonObject | Exception]:
        """What each change did, or why it was not made. One that was begun is made, whoever left.

        The index is locked only while they are made, and each is committed before it counts as done.
        """
        with self._writer(_index(self._live.refresh())) as writer:
            return [_attempted(change, writer) for change in changes]

    def _embed(
        self, waiting: Sequence[tuple[Sequence[str], Side]], _: IsCancelled
    ) -> list[npt.NDArray[np.float32] | Exception]:
        embed = self._live.refresh().embed
        return [_attempted(partial(embed, side=side), texts) for texts, side in waiting]

    def _writer(self, index: Index) -> Index:
        """The index, to change it; another process of this server may have to finish first."""
        until = time.monotonic() + self.limits.writer_seconds
        while True:
            try:
                return index.reopen(write=True)
            except IndexBusy:
                if time.monotonic() >= until:
                    raise
                time.sleep(0.05)

    # Inside ---------------------------------------------------------------------------------------

    def _check(self, requests: Requests) -> None:
        check = self.limits.check
        check("documents", "the number of documents", sum(len(r.ids + r.texts) for r in requests))
        for request in requests:
            check("documents", "k", request.k or 0)
            check("documents", "candidates", request.candidates if request.retrieve else 0)
            check("query_characters", "the length of the query", len(request.query))
            self.check_texts(_texts(request))
            self._check_ids(request.ids)
            conditions(request.where or {})  # an unfit filter need not wait in the queue

    def _weight(self, request: Request) -> int:
        """About as many tokens as the request will read."""
        stored, query = len(request.ids), len(request.query)
        if request.retrieve:
            stored += self.engine.reads(request)
        # About four characters to a token, two in other scripts; a stored passage is taken for 128 tokens.
        text_tokens = sum(len(t) // (4 if t.isascii() else 2) for t in _texts(request)) - query // 4
        pairs = stored + len(request.texts)
        return stored * 128 + text_tokens + pairs * (query // 4 + 2) + 8

    def _check_ids(self, ids: Iterable[str]) -> None:
        longest = max(map(len, ids), default=0)
        self.limits.check("id_characters", "the length of an id", longest)

    def _newest(self) -> Engine:
        """The engine, with the index as it is now."""
        engine = self._live.refresh()
        if engine.index is not None:
            engine.index.refresh()
        return engine


def _index(engine: Engine) -> Index:
    if engine.index is None:
        raise InputError("this server has a model but no index; start it with an index")
    return engine.index


def _attempted(work: Callable[..., T], *args: Any) -> T | Exception:
    """What a call returns, or the expected error that it raises."""
    try:
        return work(*args)
    except (DecoupledError, OSError) as error:
        return error


def _texts(request: Request) -> Iterator[str]:
    """The texts that a client sent, its query first."""
    yield request.query
    for text in request.texts:
        yield text if isinstance(text, str) else text.text
