"""The read path over shards: requests go to all of them at once, and their results become one.

Every shard opens the whole index and searches all of it, so that the candidates are those of one engine;
then it fetches and scores its own passages alone, which is where the time goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from decoupled.errors import DecoupledError, InputError
from decoupled.index.index import Index
from decoupled.model.jsonable import JsonObject
from decoupled.model.spec import ModelSpec
from decoupled.search.answers import Outcome, likely_answers, rank_chances
from decoupled.search.engine import Engine
from decoupled.search.request import Request
from decoupled.search.results import Answers, Hits, Label, Timing

SECONDS = 10.0
"""Seconds that a query waits for its shards."""


class ShardLost(Exception):
    """Raised where a shard died or did not answer in time."""


class Shard(Protocol):
    """An engine over one share of the index, somewhere."""

    def send(self, method: str, *args: Any, **options: Any) -> Callable[[float], Any]:
        """Call a method of the engine without waiting.

        What comes back waits so many seconds for what the engine returned or raised, and raises `ShardLost`
        where there is none in time.
        """


class ShardedEngine(Engine):
    """An engine whose requests are computed by shards; its own model loads only if something else needs it.

    A shard that does not answer within `seconds` leaves a partial result, which says so; a request that no
    shard answers is an error.
    """

    def __init__(self, shards: Sequence[Shard], index: Index, *, seconds: float = SECONDS) -> None:
        super().__init__(index)
        self.shards, self.seconds = tuple(shards), seconds
        self._turn = 0

    def reopened(self) -> ShardedEngine:
        """The same shards over the index that is at its path now, which they notice by themselves."""
        assert self.index is not None
        return ShardedEngine(self.shards, self.index.reopen(), seconds=self.seconds)

    def run(
        self,
        requests: Sequence[Request],
        *,
        budget: int | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> list[Outcome]:
        """Many requests in one pass over all shards, in order; one that cannot be served gets its error.

        Shards are not told of a cancellation: `seconds` bounds the wait for them.
        """
        del cancelled
        started = time.perf_counter()
        deadline = time.monotonic() + self.seconds
        parts = [_parts(request, len(self.shards)) for request in requests]
        pending: dict[int, Callable[[float], Any]] = {}
        replies: dict[int, list[Outcome]] = {}
        # All are asked before any is waited for, so that they work at the same time.
        for number, shard in enumerate(self.shards):
            with suppress(ShardLost):
                pending[number] = shard.send("run", [p[number] for p in parts], budget=budget)
        for number, wait in pending.items():
            with suppress(ShardLost):
                # One deadline for all: a slow shard uses up the time of those after it.
                replies[number] = wait(max(0.0, deadline - time.monotonic()))
        if not replies:
            return [self._no_answer()] * len(requests)
        missing = tuple(number for number in range(len(self.shards)) if number not in replies)
        return [
            self._merged(request, [r[n] for r in replies.values()], missing, started)
            for n, request in enumerate(requests)
        ]

    def classify(self, pairs: Sequence[tuple[str, str]], *, raw: bool = False) -> list[Label]:
        """The class of each pair, as `Engine.classify`; one shard computes all of them."""
        deadline = time.monotonic() + self.seconds
        for _ in self.shards:
            # The next shard at each call, and again where one is lost.
            self._turn = (self._turn + 1) % len(self.shards)
            with suppress(ShardLost):
                wait = self.shards[self._turn].send("classify", list(pairs), raw=raw)
                labels: list[Label] = wait(max(0.0, deadline - time.monotonic()))
                return labels
        raise self._no_answer()

    def _merged(
        self, request: Request, results: list[Outcome], missing: tuple[int, ...], started: float
    ) -> Outcome:
        if error := next((r for r in results if isinstance(r, Exception)), None):
            return error
        if request.hops > 1:
            return InputError(
                f"hops={request.hops} read linked passages together, and shards divide them; ask one process"
            )
        merged: Hits | Answers
        if request.head == "rank":
            merged = merge_hits(self.spec, request, [h for h in results if isinstance(h, Hits)])
        else:
            answers = [a for a in results if isinstance(a, Answers)]
            merged = merge_answers(self.spec, request, answers)
        spent = (time.perf_counter() - started) * 1e3
        return replace(merged, missing=missing, timing=replace(merged.timing, total_ms=spent))

    def _no_answer(self) -> DecoupledError:
        return DecoupledError(
            f"none of {len(self.shards)} shards answered within {self.seconds:g} s; "
            "are they running? Give them more time, or more replicas"
        )


def _parts(request: Request, count: int) -> list[Request]:
    """A request for each shard: all ids, of which it knows its own, and its part of the texts.

    Scores come raw, so that they can be compared.
    """
    # Every count-th text: each shard gets as many, give or take one.
    texts = [request.texts[number::count] for number in range(count)]
    return [replace(request, texts=mine, raw=True, part=True) for mine in texts]


def merge_hits(spec: ModelSpec, request: Request, results: Sequence[Hits]) -> Hits:
    """The best hits of all shards, whose scores must be logits; probabilities unless they are wanted raw."""
    hits = sorted((hit for hits in results for hit in hits), key=lambda h: -h.score)[: request.k]
    if not request.raw:
        values = np.array([hit.score for hit in hits], np.float64)
        chances = rank_chances(spec, request, values).tolist()
        hits = [replace(hit, score=score) for hit, score in zip(hits, chances, strict=True)]
    return Hits(query=request.query, items=tuple(hits), **_cost(results))


def merge_answers(spec: ModelSpec, request: Request, results: Sequence[Answers]) -> Answers:
    """The best answers of all shards, whose scores must be raw, weighed against all spans of all shards."""
    weights = [answers.weight for answers in results]
    weight = float(np.logaddexp.reduce(weights)) if weights else -np.inf
    items = tuple(answer for answers in results for answer in answers)
    merged = Answers(query=request.query, items=items, weight=weight, **_cost(results))
    return likely_answers(spec, request, merged)


def _cost(results: Sequence[Hits | Answers]) -> JsonObject:
    """Notes, tokens and times of a merged result: a stage takes as long as in the slowest shard."""
    slowest = {n: max((getattr(f.timing, n) for f in results), default=0.0) for n in vars(Timing())}
    notes = tuple(dict.fromkeys(note for one in results for note in one.notes))
    return {"timing": Timing(**slowest), "tokens": sum(f.tokens for f in results), "notes": notes}
