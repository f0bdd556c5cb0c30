"""The read path over shards: a query goes to all of them at once, and their results become one.

Every shard opens the whole index and searches all of it, so that the candidates are those of one engine;
then it fetches and scores its own passages alone, which is where the time goes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

from decoupled.candidates import FirstStage
from decoupled.cluster.merge import merge_answers, merge_hits
from decoupled.engine import CANDIDATES
from decoupled.errors import DecoupledError
from decoupled.outputs import Answers, Hits, Label
from decoupled.pool import as_passages
from decoupled.spec import ModelSpec
from decoupled.store.base import Where
from decoupled.text import Passage

R = TypeVar("R")

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


class Fleet:
    """Searches, reranks, answers and classifies like an `Engine`, over shards.

    A shard that does not answer within `seconds` leaves a partial result, which says so; a query that no
    shard answers is an error.
    """

    def __init__(
        self, shards: Sequence[Shard], spec: ModelSpec, *, seconds: float = SECONDS
    ) -> None:
        self.shards, self.spec, self.seconds = tuple(shards), spec, seconds
        self._turn = 0

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
        """The `k` best passages of the index for a query, as `Engine.search`."""
        options = {"k": k, "first_stage": first_stage, "candidates": candidates, "where": where}
        started = time.perf_counter()
        found, lost = self._all("search", query, [options | {"raw": True}] * len(self.shards))
        hits = merge_hits(query, found, k=k, raw=raw, total_ms=_since(started))
        return replace(hits, missing=lost)

    def rerank(
        self,
        query: str,
        *,
        ids: Sequence[str] = (),
        texts: Sequence[str | Passage] = (),
        k: int | None = None,
        raw: bool = False,
    ) -> Hits:
        """Passages by id, texts, or both, as `Engine.rerank`; texts are dealt out among the shards."""
        started = time.perf_counter()
        given = self._dealt(ids, texts)
        found, lost = self._all("rerank", query, [g | {"k": k, "raw": True} for g in given])
        hits = merge_hits(query, found, k=k, raw=raw, total_ms=_since(started))
        return replace(hits, missing=lost)

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
        """The best answers, as `Engine.ask`."""
        started = time.perf_counter()
        if ids or texts:
            every: list[dict[str, Any]] = self._dealt(ids, texts)
        else:
            stage = {"first_stage": first_stage, "candidates": candidates, "where": where}
            every = [stage] * len(self.shards)
        null = self.spec.head("span").null
        found, lost = self._all("ask", question, [options | {"k": k} for options in every])
        answers = merge_answers(
            question, found, k=k, threshold=threshold, null=null, total_ms=_since(started)
        )
        return replace(answers, missing=lost)

    def classify(self, pairs: Sequence[tuple[str, str]], *, raw: bool = False) -> list[Label]:
        """The class of each pair, as `Engine.classify`; any one shard can tell."""
        deadline = time.monotonic() + self.seconds
        for _ in self.shards:
            self._turn = (self._turn + 1) % len(self.shards)
            try:
                pending = self.shards[self._turn].send("classify", list(pairs), raw=raw)
                labels: list[Label] = pending.wait(deadline - time.monotonic())
            except Lost:
                continue
            return labels
        raise self._nobody()

    def _dealt(self, ids: Sequence[str], texts: Sequence[str | Passage]) -> list[dict[str, Any]]:
        """All ids for every shard, which knows its own, and a part of the texts."""
        passages, count = as_passages(texts), len(self.shards)
        return [{"ids": list(ids), "texts": passages[n::count]} for n in range(count)]

    def _all(
        self, method: str, query: str, options: Sequence[dict[str, Any]]
    ) -> tuple[list[Any], tuple[int, ...]]:
        """The results of the shards that answered, and the numbers of those that did not."""
        deadline = time.monotonic() + self.seconds
        pending: dict[int, Pending] = {}
        found, lost = [], []
        for number, (shard, named) in enumerate(zip(self.shards, options, strict=True)):
            if named.get("texts") or named.get("ids") or "first_stage" in named:
                try:
                    pending[number] = shard.send(method, query, **named)
                except Lost:
                    lost.append(number)
        for number, call in pending.items():
            try:
                found.append(call.wait(max(0.0, deadline - time.monotonic())))
            except Lost:
                lost.append(number)
        if lost and not found:
            raise self._nobody()
        return found, tuple(sorted(lost))

    def _nobody(self) -> DecoupledError:
        return DecoupledError(
            f"none of {len(self.shards)} shards answered within {self.seconds:g} s; "
            "are they running? Give them more time, or more replicas"
        )


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1e3
