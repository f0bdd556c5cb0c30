"""The windows that a query is scored against: stored records are read, texts of the caller are encoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from decoupled.index.encode import encode_texts
from decoupled.index.record import Excerpt
from decoupled.index.store.base import Rows, Snapshot
from decoupled.index.store.state_cache import StateCache
from decoupled.model.codec import Codec
from decoupled.model.states import Encoded, States
from decoupled.model.tokens import Passage
from decoupled.runtime.base import Passages, Runtime
from decoupled.search.cache import DeviceCache, EncodedText, TextCache, TextKey
from decoupled.search.request import Search, Windows, as_passages, live, timed


def read_states(snapshot: Snapshot, rows: Rows, cache: StateCache | None) -> Encoded:
    """The states of stored records, from memory where they are there."""
    return snapshot.states(rows) if cache is None else cache.states(snapshot, rows)


def stored_windows(
    snapshot: Snapshot, rows: Rows, cache: StateCache | None, device: DeviceCache | None
) -> Windows:
    """Stored records with their states, left on the device where all of them are there."""
    states: Passages | None = None
    if device is not None and len(rows):
        states = device.get(snapshot.state_keys(rows))
    if states is None:
        states = read_states(snapshot, rows, cache)
    return Windows(states=states, snapshot=snapshot, rows=rows)


def encode_given(
    runtime: Runtime,
    searches: Sequence[Search],
    codec: Codec | None,
    cache: TextCache | None,
    budget: int | None,
) -> None:
    """Put the windows of the texts that requests bring after the stored ones; each text is encoded once."""
    given = [s for s in live(searches) if s.request.texts or not len(s.windows)]
    if not given:
        return
    with timed("encode_ms", *given):
        # Only a passage whose positions go on from its query's depends on that query.
        joint, name = runtime.spec.positions == "joint", codec.name if codec is not None else ""
        passages = [as_passages(search.request.texts) for search in given]
        keys = [
            [(name, len(s.encoding.states.values) if joint else 0, p.text) for p in texts]
            for s, texts in zip(given, passages, strict=True)
        ]
        encoded = _encode(runtime, (key for group in keys for key in group), codec, cache, budget)
        empty = _no_states(runtime, codec)
        for search, texts, group in zip(given, passages, keys, strict=True):
            search.windows = _joined(search.windows, texts, [encoded[key] for key in group], empty)


def _encode(
    runtime: Runtime,
    keys: Iterable[TextKey],
    codec: Codec | None,
    cache: TextCache | None,
    budget: int | None,
) -> dict[TextKey, EncodedText]:
    """Every text once, from the cache where it is there; those of one query length together."""
    encoded: dict[TextKey, EncodedText] = {}
    missing: dict[int, list[TextKey]] = {}
    for key in dict.fromkeys(keys):
        known = cache.get(key) if cache is not None else None
        if known is not None:
            encoded[key] = known
        else:
            missing.setdefault(key[1], []).append(key)
    for length, group in missing.items():
        split = runtime.tokenizer.windows([text for _, _, text in group])
        ids = [window.ids for windows in split for window in windows]
        raw = encode_texts(runtime, "passage", ids, query_length=length, budget=budget).states
        states = codec.encode(raw) if codec is not None else raw
        first = 0
        for key, windows in zip(group, split, strict=True):
            which = np.arange(first, first + len(windows))
            encoded[key] = EncodedText(tuple(windows), states.select(which))
            first += len(windows)
            if cache is not None:
                cache.put(key, encoded[key])
    return encoded


def _no_states(runtime: Runtime, codec: Codec | None) -> States | Encoded:
    none = np.zeros(0, np.int64)
    if codec is not None:
        return Encoded(np.zeros((0, codec.bytes_per_token), np.uint8), none)
    return States(np.zeros((0, runtime.spec.state_width("passage")), np.float32), none)


def _joined(
    stored: Windows,
    passages: Sequence[Passage],
    encoded: Sequence[EncodedText],
    empty: States | Encoded,
) -> Windows:
    """Stored records, then texts."""
    excerpts = [
        Excerpt.of(passage, number, window)
        for passage, text in zip(passages, encoded, strict=True)
        for number, window in enumerate(text.windows)
    ]
    owners = [owner for owner, text in enumerate(encoded) for _ in text.windows]
    parts = [stored.states if len(stored) else empty, *(text.states for text in encoded)]
    states = type(empty).concat(parts)  # type: ignore[arg-type]  # all of one kind, by one codec
    return replace(stored, states=states, texts=tuple(excerpts), owners=tuple(owners))
