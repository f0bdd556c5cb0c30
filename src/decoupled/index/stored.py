"""Puts stored windows together again: one passage with its neighbours, or all passages of an index."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from decoupled.errors import MissingRecord
from decoupled.index.record import Excerpt
from decoupled.index.stale import document_of
from decoupled.index.store.base import Snapshot
from decoupled.index.store.filters import VALUES
from decoupled.model.tokens import Passage

AROUND = 1500
"""Characters of the document that are looked at before and after a passage."""
MOST = 24
"""Most neighbours that are shown with a passage."""


def passage_and_around(snapshot: Snapshot, ident: str) -> tuple[Passage, list[Passage]]:
    """A passage, and the passages of its document near it and itself, in the document's order.

    One that was not cut from a document stands alone. An unknown id is a `MissingRecord`.
    """
    (passage,) = joined(snapshot.texts(snapshot.locate([ident])))
    name, start = passage.meta.get("document"), passage.meta.get("start")
    if not isinstance(name, str) or not isinstance(start, int):
        return passage, [passage]
    near = {"gte": max(0, start - AROUND), "lte": start + len(passage.text) + AROUND}
    # Neighbours share the document's title, or at least common words.
    words = f"{passage.title} {passage.text[:400]}"
    rows = snapshot.lexical(words, MOST, {"document": name, "start": near}).rows
    others = {p.id: p for p in joined(snapshot.texts(rows)) if p.id != ident}
    return passage, sorted([passage, *others.values()], key=lambda p: int(p.meta["start"]))


def named(snapshot: Snapshot, ids: Sequence[str]) -> dict[str, list[str]]:
    """The passages that each id names: itself, or all that were cut from the document of that name.

    Ids that the index does not know are left out.
    """
    try:
        snapshot.locate(ids)
        return {ident: [ident] for ident in ids}
    except MissingRecord:
        digests = dict(zip(ids, snapshot.digests(ids), strict=True))
    passages = {ident: [ident] for ident in ids if digests[ident] is not None}
    others = [ident for ident in ids if digests[ident] is None]
    for start in range(0, len(others), VALUES):
        for window in snapshot.scan({"document": others[start : start + VALUES]}):
            if window.window == 0 and (name := document_of(window.id, window.meta)) != window.id:
                passages.setdefault(name, []).append(window.id)
    return passages


def joined(windows: Iterable[Excerpt]) -> list[Passage]:
    """The passages that these windows were cut from, each with its whole text."""
    texts: dict[str, Passage] = {}
    for window in sorted(windows, key=lambda window: window.start):
        # Windows overlap: the text so far is cut where this window begins.
        before = texts[window.id].text[: window.start] if window.id in texts else ""
        text = before + window.text
        texts[window.id] = Passage(id=window.id, text=text, title=window.title, meta=window.meta)
    return list(texts.values())


def stored_passages(snapshot: Snapshot) -> Iterator[Passage]:
    """Every passage of an index as it was added, in bounded memory."""
    # The windows of a passage lie together, so that one passage at a time is enough memory.
    for _, windows in groupby(snapshot.scan(), key=lambda window: window.id):
        yield from joined(windows)
