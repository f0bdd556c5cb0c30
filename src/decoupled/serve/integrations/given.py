"""Documents of another framework, scored by an engine: stored states where the index has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoupled.errors import InputError
from decoupled.index.record import Excerpt
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine
from decoupled.search.results import Answer

_FRESH = "\0"
"""Marks the name of a text that is encoded now, so that it never meets a stored id."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """What the adapters read off a document."""

    text: str
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Sorted:
    """Documents by where their states come from, with the places that each name stands for."""

    ids: tuple[str, ...]
    texts: tuple[Passage, ...]
    places: dict[str, list[int]]


def rank(
    engine: Engine, query: str, documents: Sequence[Document], k: int | None
) -> list[tuple[int, float]]:
    """The places of the `k` best documents and their scores, best first; equal texts score equally.

    A document that the index holds under its id, word for word, is scored from its stored states; any
    other is encoded now.
    """
    if k is not None and k < 1:
        raise InputError(f"{k} documents are to be kept; keep at least one, or None for all")
    if not documents:
        return []
    given = sort(engine, documents)
    hits = engine.rerank(query, ids=given.ids, texts=given.texts)
    hits.check_whole()
    ranked = [(place, hit.score) for hit in hits for place in given.places[hit.id]]
    return ranked[:k]


def ask(
    engine: Engine, question: str, documents: Sequence[Document], k: int, threshold: float
) -> list[tuple[int, Answer]]:
    """The best answers, each with the place of its document."""
    if not documents:
        return []
    given = sort(engine, documents)
    answers = engine.ask(question, k, ids=given.ids, texts=given.texts, threshold=threshold)
    answers.check_whole()
    return [(given.places[answer.passage_id][0], answer) for answer in answers]


def sort(engine: Engine, documents: Sequence[Document]) -> Sorted:
    """Tell the documents that the index holds word for word from those it does not."""
    known = _stored(engine, documents)
    stored: dict[str, list[int]] = {}
    fresh: dict[str, list[int]] = {}
    for place, document in enumerate(documents):
        if document.id is not None and known.get(document.id) == document.text:
            stored.setdefault(document.id, []).append(place)
        else:
            fresh[f"{place}{_FRESH}"] = [place]
    texts = [Passage(id=name, text=documents[place].text) for name, [place] in fresh.items()]
    return Sorted(ids=tuple(stored), texts=tuple(texts), places=stored | fresh)


def _stored(engine: Engine, documents: Sequence[Document]) -> dict[str, str]:
    """The text that the index holds for each id that it knows."""
    named = list({d.id: None for d in documents if d.id and _FRESH not in d.id})
    if engine.index is None or not named:
        return {}
    snapshot = engine.index.refresh()
    here = [
        name
        for name, digest in zip(named, snapshot.digests(named), strict=True)
        if digest is not None
    ]
    windows: dict[str, list[Excerpt]] = {}
    for excerpt in snapshot.texts(snapshot.locate(here)):
        windows.setdefault(excerpt.id, []).append(excerpt)
    return {name: _whole(parts) for name, parts in windows.items()}


def _whole(windows: Sequence[Excerpt]) -> str:
    """The text of a passage from its windows, which overlap."""
    text = ""
    for window in windows:
        text = text[: window.start] + window.text
    return text
