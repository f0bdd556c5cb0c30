"""The read path over shards: requests go to all of them at once, and their results become one.

Every shard opens the whole index and searches all of it, so that the candidates are those of one engine;
then it fetches and scores its own passages alone, which is where the time goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from decoupled.errors import DecoupledError
from decoupled.index.index import Index
from decoupled.model.tokens import Passage
from decoupled.search.batch import Outcome
from decoupled.search.engine import Engine
from decoupled.search.request import Request
from decoupled.search.results import Answers, Hits, Label
from decoupled.serve.cluster.merge import merge_answers, merge_hits

SECONDS = 10.0
"""How long a query waits for its shards."""


class Lost(Exception):
    """A shard that died or was too slow."""


class Pending(Protocol):
    """A call that is on its way."""

    def wait(self, seconds: float) -> Any:
        """What the engine returned or raised; `Lost` where there is none in time."""


class Shard(Protocol):
    """An engine over one share of the index, somewhere."""

    def send(self, method: str, *args: Any, **options: Any) -> Pending:
        """Call a method of the engine, without waiting."""


class Fleet(Engine):
    """An engine whose requests are computed by shards; its own model loads only if something else needs it.

    A shard that does not answer within `seconds` leaves a partial result, which says so; a request that no
    shard answers is an error.
    """

    def __init__(self, shards: Sequence[Shard], index: Index, *, seconds: float = SECONDS) -> None:
        super().__init__(index)
        self.shards, self.seconds = tuple(shards), seconds
        self._turn = 0

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
        pending: dict[int, Pending] = {}
        replies: dict[int, list[Outcome]] = {}
        for number, shard in enumerate(self.shards):
            mine = [part[number] for part in parts]
            try:
                pending[number] = shard.send("run", mine, budget=budget)
            except Lost:
                continue
        for number, call in pending.items():
            try:
                replies[number] = call.wait(max(0.0, deadline - time.monotonic()))
            except Lost:
                continue
        if not replies:
            nobody = self._nobody()
            return [nobody for _ in requests]
        lost = tuple(number for number in range(len(self.shards)) if number not in replies)
        return [
            self._merged(request, [r[n] for r in replies.values()], lost, started)
            for n, request in enumerate(requests)
        ]

    def classify(self, pairs: Sequence[tuple[str, str]], *, raw: bool = False) -> list[Label]:
        """The class of each pair, as `Engine.classify`; any one shard can tell."""
        deadline = time.monotonic() + self.seconds
        for _ in self.shards:
            self._turn = (self._turn + 1) % len(self.shards)
            try:
                pending = self.shards[self._turn].send("classify", list(pairs), raw=raw)
                labels: list[Label] = pending.wait(max(0.0, deadline - time.monotonic()))
            except Lost:
                continue
            return labels
        raise self._nobody()

    def _merged(
        self, request: Request, found: list[Outcome], lost: tuple[int, ...], started: float
    ) -> Outcome:
        for outcome in found:
            if isinstance(outcome, Exception):
                return outcome
        spent = (time.perf_counter() - started) * 1e3
        if request.head == "rank":
            hits = [h for h in found if isinstance(h, Hits)]
            merged: Hits | Answers = merge_hits(request, hits, total_ms=spent)
        else:
            answers = [a for a in found if isinstance(a, Answers)]
            null = self.index is not None and self.index.spec.head("span").null
            merged = merge_answers(request, answers, null=null, total_ms=spent)
        return replace(merged, missing=lost)

    def _nobody(self) -> DecoupledError:
        return DecoupledError(
            f"none of {len(self.shards)} shards answered within {self.seconds:g} s; "
            "are they running? Give them more time, or more replicas"
        )


def _parts(request: Request, count: int) -> list[Request]:
    """A request for each shard: all ids, of which it knows its own, and its part of the texts.

    Scores come as logits, and all answers however light, so that they can be compared.
    """
    texts: list[list[str | Passage]] = [[] for _ in range(count)]
    for number, text in enumerate(request.texts):
        texts[number % count].append(text)
    return [replace(request, texts=tuple(mine), raw=True, threshold=0.0) for mine in texts]
