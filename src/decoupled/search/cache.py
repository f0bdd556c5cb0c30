"""What is not computed or read twice: texts that were encoded, states that are on the device."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decoupled.index.store.state_cache import StateCache
from decoupled.model.states import Encoded, States
from decoupled.model.tokens import Window
from decoupled.runtime.base import OnDevice, Runtime

TextKey = tuple[str, int, str]
"""Name of the codec, length of the query (0 where it does not matter), text."""


@dataclass(frozen=True, eq=False)
class EncodedText:
    """The windows of one text and their states, as the cross component takes them."""

    windows: tuple[Window, ...]
    states: States | Encoded

    @property
    def size(self) -> int:
        """Bytes held, about."""
        own = sum(w.ids.nbytes + w.offsets.nbytes + 4 * len(w.text) + 200 for w in self.windows)
        return own + self.states.values.nbytes


class TextCache:
    """The last texts within a number of bytes, least recently used out first. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = self.hits = self.misses = 0
        self._texts: OrderedDict[TextKey, EncodedText] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: TextKey) -> EncodedText | None:
        """The states of a text, if they are here."""
        with self._guard:
            text = self._texts.get(key)
            if text is None:
                self.misses += 1
                return None
            self.hits += 1
            self._texts.move_to_end(key)
            return text

    def put(self, key: TextKey, text: EncodedText) -> None:
        """Keep a text; one that alone would fill the cache is not kept."""
        if text.size > self.limit // 4:
            return
        with self._guard:
            old = self._texts.pop(key, None)
            self._texts[key] = text
            self.bytes += text.size - (old.size if old else 0)
            while self.bytes > self.limit:
                self.bytes -= self._texts.popitem(last=False)[1].size


class DeviceCache:
    """States in the memory of a runtime's device: one block, found by the keys of their records."""

    def __init__(self, keys: npt.NDArray[np.int64], passages: OnDevice) -> None:
        self._order = np.argsort(keys)
        self._keys = keys[self._order]
        self._passages = passages

    @classmethod
    def fill(cls, runtime: Runtime, cache: StateCache) -> DeviceCache | None:
        """What is in memory, brought to the device; None for a runtime that reads ours."""
        cached = cache.everything()
        kept = runtime.keep(cached[1]) if cached is not None else None
        return cls(cached[0], kept) if cached is not None and kept is not None else None

    def get(self, keys: npt.NDArray[np.int64]) -> OnDevice | None:
        """The states of these records; None where one of them is not there."""
        at = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        if not (self._keys[at] == keys).all():
            return None
        return self._passages.select(self._order[at])
