"""The windows that a query is scored against: stored records, texts of the caller, or both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from decoupled import segment
from decoupled.codec import Codec
from decoupled.errors import InputError
from decoupled.recent import Known, Recent
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
    """Stored records: one read of their states."""
    return Pool(states=snapshot.states(rows), snapshot=snapshot, rows=rows)


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
    states = segment.encode(runtime, "passage", ids, query_length=length, budget=budget).states
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


def as_passages(texts: Sequence[str | Passage]) -> list[Passage]:
    """Plain strings become passages named by their place."""
    if isinstance(texts, str):
        raise InputError("texts is one string; give a list of strings")
    return [
        text if isinstance(text, Passage) else Passage(id=str(number), text=text)
        for number, text in enumerate(texts)
    ]
