"""A cache of stored states in memory; the least recently used records leave it first.

What is kept is what the store holds, the codec's bytes: a few kilobytes a passage. A record is known by the
location of its bytes, which is never written twice, so updates, deletions and compaction need no notice.
"""

import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.store.base import Rows, Snapshot
from decoupled.model.states import Encoded

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
OVERHEAD = 250
"""Bytes that Python spends on each record besides its states (measured)."""
BLOCK = 1024
"""Records that `warm` reads at a time."""


@dataclass(frozen=True, kw_only=True)
class MemoryUsage:
    """How much the cache holds in bytes and records, and how often it spared a read."""

    budget: int
    bytes: int = 0
    records: int = 0
    hits: int = 0
    misses: int = 0
    evicted: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the records asked for that were in memory."""
        return self.hits / max(1, self.hits + self.misses)

    def to_json(self) -> dict[str, int | float]:
        """The counts as a JSON object, with the hit rate."""
        return {**asdict(self), "hit_rate": round(self.hit_rate, 4)}


class StateCache:
    """Records in memory up to a budget; threads may share it."""

    def __init__(self, budget: int | str) -> None:
        self.budget = parse_bytes(budget)
        self._kept: OrderedDict[int, npt.NDArray[np.uint8]] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._guard = threading.Lock()

    @property
    def usage(self) -> MemoryUsage:
        """The bytes, records and hits as they stand now."""
        with self._guard:
            return MemoryUsage(budget=self.budget, records=len(self._kept), **self._counts)

    def states(self, snapshot: Snapshot, rows: Rows) -> Encoded:
        """As `snapshot.states`, reading only what is not in memory."""
        keys = snapshot.state_keys(rows).tolist()
        with self._guard:
            cached = [self._kept.get(key) for key in keys]
            lacking = [n for n, states in enumerate(cached) if states is None]
            for key in filter(self._kept.__contains__, keys):
                self._kept.move_to_end(key)
            self._counts.update(hits=len(keys) - len(lacking), misses=len(lacking))
        if lacking or not keys:
            fresh = snapshot.states(np.asarray(rows, np.int64)[lacking])
            self._keep([keys[n] for n in lacking], fresh)
            if len(lacking) == len(keys):
                return fresh
            for number, states in zip(lacking, fresh, strict=True):
                cached[number] = np.asarray(states, np.uint8)
        return Encoded.stack([states for states in cached if states is not None])

    def warm(
        self, snapshot: Snapshot, progress: Callable[[MemoryUsage], None] | None = None
    ) -> MemoryUsage:
        """Read records until all of them are in memory or the budget is full."""
        rows = snapshot.rows()
        for start in range(0, len(rows), BLOCK):
            before, block = self.usage, rows[start : start + BLOCK]
            keys = snapshot.state_keys(block).tolist()
            with self._guard:
                lacking = [n for n, key in enumerate(keys) if key not in self._kept]
            if lacking:
                self._keep([keys[n] for n in lacking], snapshot.states(block[lacking]))
            if progress is not None:
                progress(self.usage)
            if self.usage.evicted > before.evicted:
                break  # more would only push out what was just read
        return self.usage

    def everything(self) -> tuple[npt.NDArray[np.int64], Encoded] | None:
        """All that is in memory, and the key of each record; None where nothing is."""
        with self._guard:
            keys = np.fromiter(self._kept, np.int64, len(self._kept))
            return (keys, Encoded.stack(list(self._kept.values()))) if len(keys) else None

    def _keep(self, keys: list[int], fresh: Encoded) -> None:
        with self._guard:
            for key, states in zip(keys, fresh, strict=True):
                if key in self._kept or states.nbytes + OVERHEAD > self.budget:
                    continue
                # A copy: a view would keep the whole batch alive.
                self._kept[key] = np.array(states, np.uint8)
                self._counts["bytes"] += states.nbytes + OVERHEAD
            while self._counts["bytes"] > self.budget:
                _, gone = self._kept.popitem(last=False)
                self._counts.update(bytes=-gone.nbytes - OVERHEAD, evicted=1)


def bytes_in(text: str) -> int | None:
    """The bytes that a text such as `512MB` or `2 GiB` names; None where it names none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        return None
    return int(float(match[1]) * _UNITS[match[2]])


def parse_bytes(size: int | str) -> int:
    """A number of bytes, or text such as `2GB`, `512 MiB`."""
    if isinstance(size, str):
        count = bytes_in(size)
        if count is None:
            raise InputError(f"memory is {size!r}; write bytes, or for example 512MB or 2GiB")
        size = count
    if size <= 0:
        raise InputError(f"memory is {size}; choose a size above 0, or none")
    return size
