"""The windows that a query is scored against: stored records, texts of the caller, or both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from decoupled import segment
from decoupled.codec import Codec
from decoupled.errors import InputError
from decoupled.record import Excerpt
from decoupled.runtime.base import Runtime
from decoupled.states import Encoded, States
from decoupled.store.base import Rows, Snapshot
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


def of_rows(snapshot: Snapshot, rows: Rows) -> Pool:
    """Stored records, those of the reader's share: one read of their states."""
    rows = snapshot.mine(rows)
    return Pool(states=snapshot.states(rows), snapshot=snapshot, rows=rows)


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
