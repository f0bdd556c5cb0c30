"""The windows that a query is scored against: stored records are read, texts of the caller are encoded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from sys import getsizeof

import numpy as np
import numpy.typing as npt

from decoupled.index.encode import encode_windows
from decoupled.index.record import Excerpt
from decoupled.index.store.base import Snapshot
from decoupled.index.store.state_cache import StateCache
from decoupled.model.codec import Codec
from decoupled.model.states import Encoded, States
from decoupled.model.tokens import Passage, Window
from decoupled.runtime.base import OnDevice, Passages, Runtime
from decoupled.search.first_stage import Candidates
from decoupled.search.request import NO_WINDOWS, SearchRun, Windows, as_passages, timed

_SLICE_CHARS = 1 << 17
"""Characters of texts that are encoded at once."""
_TEXT, _WINDOW = 1400, 600
"""Bytes of the Python objects of a text and of a window, without their arrays and strings."""

TextKey = tuple[str, int, str, str, str]
"""Name of the codec, length of the query (0 where it does not matter), title, text, structure."""


@dataclass(frozen=True, eq=False)
class EncodedText:
    """The windows of one text and their states, as the cross component takes them."""

    windows: tuple[Window, ...]
    states: States | Encoded

    @cached_property
    def size(self) -> int:
        """Bytes held, with those of the objects that hold them, and of the text as a key."""
        own = sum(w.ids.nbytes + w.offsets.nbytes + getsizeof(w.text) for w in self.windows)
        return own + len(self.windows) * (_WINDOW + 8) + self.states.values.nbytes + _TEXT


class TextCache:
    """Cache of encoded texts up to a number of bytes; the least recently used leave first. Thread-safe."""

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
            else:
                self.hits += 1
                self._texts.move_to_end(key)
            return text

    def put(self, key: TextKey, text: EncodedText) -> None:
        """Keep a text; one that alone would fill the cache is not kept."""
        # One large text must not push out many small ones.
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
        """Copy the cached states to the runtime's device; None for a runtime that reads host memory."""
        cached = cache.everything()
        kept = runtime.keep(cached[1]) if cached is not None else None
        return cls(cached[0], kept) if cached is not None and kept is not None else None

    def get(self, keys: npt.NDArray[np.int64]) -> OnDevice | None:
        """The states of these records; None where one of them is not there."""
        # Clipped: a key beyond the last has no position, and is then seen to differ.
        at = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        if not (self._keys[at] == keys).all():
            return None
        return self._passages.select(self._order[at])


@dataclass(frozen=True, kw_only=True, eq=False)
class Fetched:
    """The candidates of a request as the index holds them."""

    candidates: Candidates = field(default_factory=Candidates)
    windows: Windows = NO_WINDOWS
    """Windows of the reader's share, with states on the runtime's device if they are there."""
    states: Encoded | None = None
    """The same states on the host, where late interaction reads them; None where only the device has them."""

    @property
    def own(self) -> npt.NDArray[np.bool_]:
        """Which of the candidates are of the reader's share."""
        return np.isin(self.candidates.rows, self.candidates.own)


def fetch(
    snapshot: Snapshot,
    candidates: Candidates,
    cache: StateCache | None,
    device: DeviceCache | None,
    *,
    on_host: bool,
) -> Fetched:
    """The states of the candidates of the reader's share; `on_host` too, for late interaction."""
    rows, states = candidates.own, None
    here = device.get(snapshot.state_keys(rows)) if device is not None and len(rows) else None
    if here is None or on_host:
        states = snapshot.states(rows) if cache is None else cache.states(snapshot, rows)
    passages: Passages | None = here if here is not None else states
    assert passages is not None
    windows = Windows(states=passages, snapshot=snapshot, rows=rows)
    return Fetched(candidates=candidates, windows=windows, states=states)


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """Encodes texts that requests bring as the passages of an index are encoded."""

    runtime: Runtime
    codec: Codec | None
    cache: TextCache | None
    budget: int | None
    titles: bool

    def add_texts(self, searches: Sequence[tuple[SearchRun, Windows]]) -> list[Windows]:
        """The windows of each search, and after them those of the texts that it brings."""
        lacking = [
            (search, own) for search, own in searches if search.request.texts or not len(own)
        ]
        joined = dict(searches)
        if lacking:
            with timed("encode_ms", *(search for search, _ in lacking)):
                keys = [self._keys(search) for search, _ in lacking]
                encoded = self._encode(key for group in keys for key in group)
                for (search, own), group in zip(lacking, keys, strict=True):
                    texts = [encoded[key] for key in group]
                    passages = as_passages(search.request.texts)
                    joined[search] = _joined(own, passages, texts, self._empty())
        return list(joined.values())

    def _keys(self, search: SearchRun) -> list[TextKey]:
        spec = self.runtime.spec
        # Only a passage whose positions go on from its query's depends on that query.
        length = int(search.encoding.states.lengths[0]) if spec.positions == "joint" else 0
        name, whole = (
            self.codec.name if self.codec is not None else "",
            spec.text.structure is not None,
        )
        return [
            (name, length, p.title if self.titles else "", p.text, p.structure if whole else "")
            for p in as_passages(search.request.texts)
        ]

    def _empty(self) -> States | Encoded:
        """An empty batch of states, in the width and format of the others."""
        none = np.zeros(0, np.int64)
        if self.codec is not None:
            return Encoded(np.zeros((0, self.codec.bytes_per_token), np.uint8), none)
        width = self.runtime.spec.state_width("passage")
        return States(np.zeros((0, width), np.float32), none)

    def _encode(self, keys: Iterable[TextKey]) -> dict[TextKey, EncodedText]:
        """Encode every text once, or take it from the cache; texts of one query length share batches."""
        encoded: dict[TextKey, EncodedText] = {}
        missing: dict[int, list[TextKey]] = {}
        # Several requests may bring the same text.
        for key in dict.fromkeys(keys):
            cached = self.cache.get(key) if self.cache is not None else None
            if cached is not None:
                encoded[key] = cached
            else:
                missing.setdefault(key[1], []).append(key)
        for length, group in self._slices(missing):
            titles, texts, structures = zip(*(key[2:] for key in group), strict=True)
            split = self.runtime.tokenizer.windows(texts, titles, structures)
            raw = encode_windows(
                self.runtime, split, query_length=length, budget=self.budget, vectors=False
            ).states
            states = self.codec.encode(raw) if self.codec is not None else raw
            first = 0
            for key, windows in zip(group, split, strict=True):
                which = np.arange(first, first + len(windows))
                encoded[key] = EncodedText(tuple(windows), states.select(which))
                first += len(windows)
                if self.cache is not None:
                    self.cache.put(key, encoded[key])
        return encoded

    @staticmethod
    def _slices(missing: dict[int, list[TextKey]]) -> Iterator[tuple[int, list[TextKey]]]:
        """The texts of each query length, a slice at a time: states take many times the space of codes."""
        for length, group in missing.items():
            held, chars = list[TextKey](), 0
            for key in group:
                if chars > _SLICE_CHARS:
                    yield length, held
                    held, chars = [], 0
                held.append(key)
                chars += len(key[3])
            yield length, held


def _joined(
    stored: Windows,
    passages: Sequence[Passage],
    encoded: Sequence[EncodedText],
    empty: States | Encoded,
) -> Windows:
    """The stored windows followed by the windows of the caller's texts."""
    excerpts = [
        Excerpt.of(passage, number, window)
        for passage, text in zip(passages, encoded, strict=True)
        for number, window in enumerate(text.windows)
    ]
    # Windows of one text share an owner, by which they count as one result.
    owners = [owner for owner, text in enumerate(encoded) for _ in text.windows]
    parts = [stored.states if len(stored) else empty, *(text.states for text in encoded)]
    states = type(empty).concat(parts)  # type: ignore[arg-type]  # all of one kind, by one codec
    return replace(stored, states=states, texts=tuple(excerpts), owners=tuple(owners))
