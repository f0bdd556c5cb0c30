"""A runtime for work that may be cancelled: it stops between two batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import Side
from decoupled.model.states import Encoded, Encoding, States
from decoupled.model.tokens import Ids
from decoupled.runtime.base import Logits, OnDevice, Passages, Runtime

T = TypeVar("T")
R = TypeVar("R")


class Cancelled(Exception):
    """Nobody waits for the result any more."""


class Cancellable:
    """Another runtime, asked before each of its batches whether the work was cancelled."""

    def __init__(self, runtime: Runtime, cancelled: Callable[[], bool]) -> None:
        self._runtime, self._cancelled = runtime, cancelled
        self.name, self.spec, self.tokenizer = runtime.name, runtime.spec, runtime.tokenizer
        self.token_budget, self.mixes = runtime.token_budget, runtime.mixes

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """As the other runtime does it; the first batch after a cancellation ends it."""
        return self._runtime.each(work, items)

    def encode(self, side: Side, ids: Sequence[Ids], *, query_length: int = 0) -> Encoding:
        """The input component on one batch, unless cancelled."""
        self._check()
        return self._runtime.encode(side, ids, query_length=query_length)

    def cross(self, query: States, passages: Passages, heads: Sequence[HeadKind]) -> Logits:
        """The cross component on one batch, unless cancelled."""
        self._check()
        return self._runtime.cross(query, passages, heads)

    def keep(self, encoded: Encoded) -> OnDevice | None:
        """What the other runtime keeps."""
        return self._runtime.keep(encoded)

    def _check(self) -> None:
        if self._cancelled():
            raise Cancelled
