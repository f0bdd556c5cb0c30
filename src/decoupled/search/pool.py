"""The windows that a query is scored against: stored records, texts of the caller, or both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.encode import encode_texts
from decoupled.index.record import Excerpt
from decoupled.index.store.base import Rows, Snapshot
from decoupled.index.store.state_cache import StateCache
from decoupled.model.codec import Codec
from decoupled.model.states import Encoded, States
from decoupled.model.tokens import Passage
from decoupled.runtime.base import Runtime
from decoupled.search.cache import Known, Recent


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """States of stored rows first, then of texts; what they say is looked up only when asked for."""

    states: States | Encoded
    snapshot: Snapshot | None = None
    rows: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    texts: tuple[Excerpt, ...] = ()
    owners: tuple[int, ...] = ()
    """Which of the caller's texts each of `texts` is a window of."""

    def __len__(self) -> int:
        return len(self.states)

    def codes(self, resident: StateCache | None) -> States | Encoded:
        """The states where numpy reads them, also when the runtime keeps them elsewhere."""
        if isinstance(self.states, States | Encoded):
            return self.states
        assert self.snapshot is not None
        if resident is not None:
            return resident.states(self.snapshot, self.rows)
        return self.snapshot.states(self.rows)

    def take(self, which: npt.NDArray[np.int64]) -> Pool:
        """The windows at these places, which are in ascending order."""
        stored = which[which < len(self.rows)]
        texts = (which[which >= len(self.rows)] - len(self.rows)).tolist()
        return Pool(
            states=self.states.select(which),
            snapshot=self.snapshot,
            rows=self.rows[stored],
            texts=tuple(self.texts[n] for n in texts),
            owners=tuple(self.owners[n] for n in texts),
        )

    def describe(self, windows: Sequence[int]) -> list[tuple[object, Excerpt]]:
        """For each window, a key that windows of one passage share, and what it says."""
        stored = [w for w in windows if w < len(self.rows)]
        found: dict[int, tuple[object, Excerpt]] = {}
        if stored and self.snapshot is not None:
            for window, excerpt in zip(stored, self.snapshot.texts(self.rows[stored]), strict=True):
                found[window] = excerpt.id, excerpt
        for window in windows:
            if window >= len(self.rows):
                place = window - len(self.rows)
                found[window] = self.owners[place], self.texts[place]
        return [found[window] for window in windows]

    def best(self, scores: npt.NDArray[np.float64], k: int | None) -> Iterator[tuple[int, Excerpt]]:
        """The best window of each passage, best passages first, at most `k`; ties keep their order."""
        order = np.argsort(-scores, kind="stable").tolist()
        wanted = len(order) if k is None else k
        seen: set[object] = set()
        step = max(wanted, 1)
        for start in range(0, len(order), step):
            windows = order[start : start + step]
            for window, (key, excerpt) in zip(windows, self.describe(windows), strict=True):
                if key in seen:
                    continue
                if len(seen) == wanted:
                    return
                seen.add(key)
                yield window, excerpt


class Shelf:
    """States in the memory of a runtime that has its own, such as a GPU: one block, found by place."""

    def __init__(self, places: npt.NDArray[np.int64], kept: Any) -> None:
        self._order = np.argsort(places)
        self._places = places[self._order]
        self._kept = kept

    def find(self, places: npt.NDArray[np.int64]) -> Any:
        """What the runtime keeps of these records; None where it lacks one of them."""
        at = np.searchsorted(self._places, places).clip(max=len(self._places) - 1)
        if not (self._places[at] == places).all():
            return None
        return self._kept.select(self._order[at])


def shelf_of(runtime: Runtime, resident: StateCache) -> Shelf | None:
    """What is in memory, brought to the runtime; None for one that reads ours."""
    keep, held = getattr(runtime, "keep", None), resident.everything()
    return Shelf(held[0], keep(held[1])) if keep is not None and held is not None else None


def of_rows(
    snapshot: Snapshot, rows: Rows, resident: StateCache | None = None, shelf: Shelf | None = None
) -> Pool:
    """Stored records, of the reader's share: one read of their states, from memory where they are there."""
    rows = snapshot.mine(rows)
    states = shelf.find(snapshot.state_keys(rows)) if shelf is not None and len(rows) else None
    if states is None:
        states = resident.states(snapshot, rows) if resident else snapshot.states(rows)
    return Pool(states=states, snapshot=snapshot, rows=rows)


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts that one query is to be read with."""

    passages: Sequence[Passage]
    query_length: int = 0


def of_texts(
    runtime: Runtime, passages: Sequence[Passage], *, codec: Codec | None, query_length: int = 0
) -> Pool:
    """Texts encoded now, through the codec where stored ones went through it."""
    given = Texts(passages=passages, query_length=query_length)
    return of_many_texts(runtime, [given], codec=codec)[0]


def of_many_texts(
    runtime: Runtime,
    groups: Sequence[Texts],
    *,
    codec: Codec | None,
    recent: Recent | None = None,
    budget: int | None = None,
) -> list[Pool]:
    """A pool for each group. Texts of all groups are encoded together, each once."""
    # Only a passage whose positions go on from its query's depends on that query.
    joint = runtime.spec.positions == "joint"
    wanted = [[(g.query_length if joint else 0, p.text) for p in g.passages] for g in groups]
    known: dict[tuple[int, str], Known] = {}
    missing: dict[int, list[str]] = {}
    for key in dict.fromkeys(key for keys in wanted for key in keys):
        found = recent.find(key) if recent else None
        if found is not None:
            known[key] = found
        else:
            missing.setdefault(key[0], []).append(key[1])
    for length, texts in missing.items():
        for text, fresh in zip(texts, _encode(runtime, texts, codec, length, budget), strict=True):
            known[length, text] = fresh
            if recent:
                recent.keep((length, text), fresh)
    return [
        _pool(runtime, g.passages, [known[key] for key in keys], codec)
        for g, keys in zip(groups, wanted, strict=True)
    ]


def _encode(
    runtime: Runtime, texts: Sequence[str], codec: Codec | None, length: int, budget: int | None
) -> Iterator[Known]:
    split = runtime.tokenizer.windows(texts)
    ids = [window.ids for group in split for window in group]
    states = encode_texts(runtime, "passage", ids, query_length=length, budget=budget).states
    kept: States | Encoded = codec.encode(states) if codec is not None else states
    first = 0
    for group in split:
        yield Known(tuple(group), kept.select(np.arange(first, first + len(group))))
        first += len(group)


def _pool(
    runtime: Runtime, passages: Sequence[Passage], known: Sequence[Known], codec: Codec | None
) -> Pool:
    excerpts, owners = [], []
    for owner, (passage, text) in enumerate(zip(passages, known, strict=True)):
        for number, window in enumerate(text.windows):
            excerpt = Excerpt(
                id=passage.id,
                window=number,
                start=window.start,
                text=window.text,
                title=passage.title,
                meta=passage.meta,
                offsets=window.offsets,
            )
            excerpts.append(excerpt)
            owners.append(owner)
    states: States | Encoded
    if codec is not None:
        none = np.zeros((0, codec.bytes_per_token), np.uint8)
        states = Encoded(*_rows(none, known))
    else:
        states = States(
            *_rows(np.zeros((0, runtime.spec.state_width("passage")), np.float32), known)
        )
    return Pool(states=states, texts=tuple(excerpts), owners=tuple(owners))


def _rows(
    none: npt.NDArray[np.generic], known: Sequence[Known]
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.int64]]:
    """Values and lengths of all texts; `none` says what they look like where there is no text."""
    lengths = [np.zeros(0, np.int64), *(k.states.lengths for k in known)]
    return np.concatenate([none, *(k.states.values for k in known)]), np.concatenate(lengths)


def joined(stored: Pool, texts: Pool) -> Pool:
    """Stored records and texts, scored together."""
    if not len(texts):
        return stored
    if not isinstance(stored.states, Encoded) or not isinstance(texts.states, Encoded):
        raise TypeError("stored records and texts must be encoded by the same codec")
    return Pool(
        states=Encoded.concat([stored.states, texts.states]),
        snapshot=stored.snapshot,
        rows=stored.rows,
        texts=texts.texts,
        owners=texts.owners,
    )


def as_ids(ids: Sequence[str]) -> tuple[str, ...]:
    """Ids of stored passages; a string alone would be taken for its characters."""
    if isinstance(ids, str):
        raise InputError(f"ids is one string ({ids!r:.60}); give a list of ids")
    return tuple(ids)


def as_passages(texts: Sequence[str | Passage]) -> list[Passage]:
    """Plain strings become passages named by their place."""
    if isinstance(texts, str):
        raise InputError("texts is one string; give a list of strings")
    for text in texts:
        if not isinstance(text, str | Passage):
            raise InputError(
                f"a text must be a string or a Passage, not {type(text).__name__} ({text!r:.60})"
            )
    return [
        text if isinstance(text, Passage) else Passage(id=str(number), text=text)
        for number, text in enumerate(texts)
    ]
