"""The windows that a query is scored against: stored records, texts of the caller, or both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled import segment
from decoupled.codec import Codec
from decoupled.errors import InputError
from decoupled.record import Excerpt
from decoupled.runtime.base import Runtime
from decoupled.states import Encoded, States
from decoupled.store.base import Rows, Snapshot
from decoupled.store.resident import Resident
from decoupled.text import Passage


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

    def codes(self, resident: Resident | None) -> States | Encoded:
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


def shelf_of(runtime: Runtime, resident: Resident) -> Shelf | None:
    """What is in memory, brought to the runtime; None for one that reads ours."""
    keep, held = getattr(runtime, "keep", None), resident.everything()
    return Shelf(held[0], keep(held[1])) if keep is not None and held is not None else None


def of_rows(
    snapshot: Snapshot, rows: Rows, resident: Resident | None = None, shelf: Shelf | None = None
) -> Pool:
    """Stored records: one read of their states, from memory where they are there."""
    states = shelf.find(snapshot.places(rows)) if shelf is not None and len(rows) else None
    if states is None:
        states = resident.states(snapshot, rows) if resident else snapshot.states(rows)
    return Pool(states=states, snapshot=snapshot, rows=rows)


def of_texts(
    runtime: Runtime, passages: Sequence[Passage], *, codec: Codec | None, query_length: int = 0
) -> Pool:
    """Texts encoded now, through the codec where stored ones went through it."""
    split = runtime.tokenizer.windows([p.text for p in passages])
    ids = [window.ids for group in split for window in group]
    states = segment.encode(runtime, "passage", ids, query_length=query_length).states
    excerpts, owners = [], []
    for owner, (passage, group) in enumerate(zip(passages, split, strict=True)):
        for number, window in enumerate(group):
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
    kept = codec.encode(states) if codec is not None else states
    return Pool(states=kept, texts=tuple(excerpts), owners=tuple(owners))


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


def as_passages(texts: Sequence[str | Passage]) -> list[Passage]:
    """Plain strings become passages named by their place."""
    if isinstance(texts, str):
        raise InputError("texts is one string; give a list of strings")
    return [
        text if isinstance(text, Passage) else Passage(id=str(number), text=text)
        for number, text in enumerate(texts)
    ]
