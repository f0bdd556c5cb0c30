"""Batches side by side, one core each.

On a CPU that beats all cores on one batch after the other: their threads need not wait for each other after
every operation, which costs most where other programs run too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


class Lanes:
    """As many threads as torch uses cores, made on first use; each computes on one core."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`work` on every item, results in order."""
        count = torch.get_num_threads()
        if count < 2 or len(items) < 2:
            return [work(item) for item in items]
        return list(self._open(count).map(work, items))

    def _open(self, count: int) -> ThreadPoolExecutor:
        with self._guard:
            if self._pool is None:
                pool = ThreadPoolExecutor(count, "lane", _one_core)
                together = threading.Barrier(count)
                list(pool.map(lambda _: together.wait(), range(count)))
                # What a thread sets is also what threads to come begin with.
                torch.set_num_threads(count)
                self._pool = pool
            return self._pool


def _one_core() -> None:
    torch.get_num_threads()  # the first look in a thread overrides what was set before it
    torch.set_num_threads(1)
