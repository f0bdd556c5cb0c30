"""Texts that were encoded lately: one that comes again skips the input component."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from decoupled.model.states import Encoded, States
from decoupled.model.tokens import Window


@dataclass(frozen=True, eq=False)
class Known:
    """The windows of one text and their states, as the cross component takes them."""

    windows: tuple[Window, ...]
    states: States | Encoded

    @property
    def size(self) -> int:
        """Bytes held, about."""
        own = sum(w.ids.nbytes + w.offsets.nbytes + 4 * len(w.text) + 200 for w in self.windows)
        return own + self.states.values.nbytes


class Recent:
    """The last texts within a number of bytes, least recently used out first. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = self.hits = self.misses = 0
        self._known: OrderedDict[tuple[int, str], Known] = OrderedDict()
        self._guard = threading.Lock()

    def find(self, key: tuple[int, str]) -> Known | None:
        """What is known of a text, by the length of its query (0 where it does not matter) and itself."""
        with self._guard:
            known = self._known.get(key)
            if known is None:
                self.misses += 1
                return None
            self.hits += 1
            self._known.move_to_end(key)
            return known

    def keep(self, key: tuple[int, str], known: Known) -> None:
        """Remember a text; one that alone would fill the memory is not kept."""
        if known.size > self.limit // 4:
            return
        with self._guard:
            old = self._known.pop(key, None)
            self._known[key] = known
            self.bytes += known.size - (old.size if old else 0)
            while self.bytes > self.limit:
                self.bytes -= self._known.popitem(last=False)[1].size

    def clear(self) -> None:
        """Forget everything, as when the codec changes."""
        with self._guard:
            self._known.clear()
            self.bytes = 0
