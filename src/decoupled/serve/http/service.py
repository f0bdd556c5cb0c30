"""What the routes call: queries, writes and the comparison, each behind a batcher with its own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from decoupled.errors import InputError
from decoupled.index.index import Index
from decoupled.model.folder import read_history
from decoupled.runtime.open import open_joint
from decoupled.search.batch import Outcome
from decoupled.search.engine import Engine
from decoupled.search.request import Request
from decoupled.search.results import Answers, Hits
from decoupled.serve.http import problems
from decoupled.serve.http.batching import Batcher, Done, IsCancelled
from decoupled.serve.http.limits import Limits
from decoupled.serve.http.metrics import Metrics
from decoupled.serve.http.worker import Job, Worker
from decoupled.serve.http.writer import Change, Writer
from decoupled.serve.live import LiveEngine

J = TypeVar("J")
R = TypeVar("R")

COMPARISONS = 8
"""Comparisons with the joint model that may wait: each takes as long as a cross-encoder takes."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The results of one client's requests, and how long they waited, in seconds."""

    results: list[Hits | Answers]
    waited: float
    characters: int = 0
    """Characters that the client sent to be read."""

    @property
    def tokens(self) -> int:
        """Tokens that were read."""
        return sum(r.tokens for r in self.results)


class Service:
    """One engine behind batchers."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.limits = limits
        self.metrics = Metrics()
        self._live = LiveEngine(engine)
        self.metrics.watch(lambda: self.engine)
        self._joint: tuple[Index, Engine] | None = None
        self._reads: Batcher[Job, list[Outcome]] = self._batcher(
            "read", Worker(self._live.refresh, self.metrics), limits.queue
        )
        self._compares: Batcher[Job, list[Outcome]] = self._batcher(
            "joint", self._compare, COMPARISONS
        )
        self._writes: Batcher[Change, dict[str, Any]] = self._batcher(
            "write", Writer(self._live), limits.queue
        )

    def _batcher(
        self,
        name: str,
        run: Callable[[Sequence[J], IsCancelled], Sequence[R | Exception]],
        queue: int,
    ) -> Batcher[J, R]:
        budget = self.limits.batch_tokens
        return Batcher(name, run, budget=budget, queue=queue, metrics=self.metrics)

    @property
    def engine(self) -> Engine:
        """The engine of the index as it was last seen."""
        return self._live.engine

    @property
    def device(self) -> str:
        """What computes."""
        return self.engine.runtime.name

    @property
    def window(self) -> int:
        """Tokens of a passage that the model reads at once."""
        text = self.engine.spec.text
        return text.passage_tokens - len(text.passage_prefix) - len(text.passage_suffix)

    @property
    def trained_split(self) -> bool:
        """Were the weights trained split? Then nobody taught the joint model that they make to answer."""
        index = self.engine.index
        if index is None:
            return False
        source = index.source
        history = read_history(source) if isinstance(source, Path) else source.history
        return any(step["did"] == "train" for step in history)

    async def run(self, requests: Job, *, joint: bool = False) -> Found:
        """The results of requests that one client sent; the first error is raised."""
        self._check(requests)
        batcher = self._compares if joint else self._reads
        done = await batcher.submit(
            requests, weight=sum(map(self._weight, requests)), seconds=self.limits.seconds
        )
        results: list[Hits | Answers] = []
        for request, outcome in zip(requests, done.value, strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            if not request.retrieve:
                outcome.check_whole()
            self.metrics.stages(outcome.timing, done.waited)
            results.append(outcome)
        sent = sum(len(r.query) + sum(map(len, _texts(r))) for r in requests)
        return Found(results=results, waited=done.waited, characters=sent)

    async def change(self, change: Change) -> dict[str, Any]:
        """What a change of the index did; it is durable, and searchable, when this returns."""
        if self.engine.index is None:
            raise InputError("this server has a model but no index; start it with an index")
        self._check_change(change)
        done: Done[dict[str, Any]] = await self._writes.submit(
            change, weight=change.weight, seconds=self.limits.seconds
        )
        return done.value

    async def info(self) -> dict[str, Any]:
        """What `info --json` prints."""
        return await asyncio.to_thread(self._info)

    async def ready(self) -> None:
        """Raise unless the model is loaded and the index can be read."""
        await asyncio.to_thread(self._look)

    async def cut(self, texts: list[str], tokens: int, *, keep_end: bool = False) -> list[str]:
        """Texts of at most so many tokens."""
        if max(map(len, texts), default=0) <= tokens:
            return texts
        return await asyncio.to_thread(self._cut, texts, tokens, keep_end)

    async def close(self) -> None:
        """Finish what was accepted."""
        await asyncio.gather(self._reads.close(), self._compares.close(), self._writes.close())

    # Inside ---------------------------------------------------------------------------------------

    def _check(self, requests: Job) -> None:
        bound = self.limits.documents
        given = sum(len(request.ids) + len(request.texts) for request in requests)
        self._within("the number of documents", given, "documents", bound)
        for request in requests:
            candidates = request.candidates if request.retrieve else 0
            self._within("k", request.k or 0, "documents", bound)
            self._within("candidates", candidates, "documents", bound)
            for text in (request.query, *_texts(request)):
                self._within(
                    "the length of a text", len(text), "characters", self.limits.characters
                )

    def _check_change(self, change: Change) -> None:
        count = len(change.add)
        self._within("the number of passages", count, "documents", self.limits.documents)
        for passage in change.add:
            for text in (passage.text, passage.title, passage.id):
                self._within(
                    "the length of a text", len(text), "characters", self.limits.characters
                )

    @staticmethod
    def _within(what: str, size: int, limit: str, bound: int) -> None:
        if size > bound:
            raise problems.too_long(what, size, limit, bound)

    def _weight(self, request: Request) -> int:
        """About as many tokens as the request will read."""
        stored = len(request.ids) + (request.candidates if request.retrieve else 0)
        given = sum(map(len, _texts(request))) // 4
        pairs = stored + len(request.texts)
        return stored * 128 + given + pairs * (len(request.query) // 4 + 2) + 8

    def _compare(
        self, jobs: Sequence[Job], cancelled: IsCancelled
    ) -> list[list[Outcome] | Exception]:
        """The same requests through the same weights unsplit, reading the same passages."""
        engine = self._live.refresh()
        joint = Worker(partial(self._joint_engine, engine.index), self.metrics)
        given = [[_given(engine, request) for request in job] for job in jobs]
        return joint(given, cancelled)

    def _joint_engine(self, index: Index | None) -> Engine:
        if index is None:
            raise InputError("comparing with the joint model needs an index")
        if self._joint is None or self._joint[0] is not index:
            self._joint = index, Engine.over(open_joint(index.source))
        return self._joint[1]

    def _cut(self, texts: list[str], tokens: int, keep_end: bool) -> list[str]:
        return self.engine.runtime.tokenizer.cut(texts, tokens, keep_end=keep_end)

    def _info(self) -> dict[str, Any]:
        index = self._live.refresh().index
        if index is None:
            return {"kind": "model", "model": self.engine.spec.family}
        index.refresh()
        return index.info()

    def _look(self) -> None:
        engine = self._live.refresh()
        _ = engine.runtime
        if engine.index is not None:
            engine.index.refresh()


def _texts(request: Request) -> list[str]:
    return [t if isinstance(t, str) else t.text for t in request.texts]


def _given(engine: Engine, request: Request) -> Request:
    """The request with the passages that it would find."""
    return replace(request, retrieve=False, ids=(), texts=tuple(engine.passages(request)))
