"""Documents of another framework, scored by an engine: stored states where the index has them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from decoupled.errors import InputError
from decoupled.index.store.base import Where
from decoupled.index.stored import joined
from decoupled.search.engine import Engine
from decoupled.search.request import Listed, listed
from decoupled.search.results import Answer, Hit


class Document(NamedTuple):
    """The text and the id of a document of another framework."""

    text: str
    id: str | None = None


def rank(
    engine: Engine, query: str, documents: Sequence[Document], k: int | None
) -> list[tuple[int, float]]:
    """The positions of the `k` best documents and their scores, best first; equal texts score equally.

    A document that the index holds under its id, word for word, is scored from its stored states; any
    other is encoded now.
    """
    if k is not None and k < 1:
        raise InputError(f"{k} documents are to be kept; keep at least one, or None for all")
    if not documents:
        return []
    listing = recognise(engine, documents)
    hits = engine.rerank(query, ids=listing.ids, texts=listing.texts)
    hits.check_whole()
    return [(n, hit.score) for hit in hits for n in listing.positions[hit.id]][:k]


def retrieve(
    engine: Engine, query: str, k: int, where: Where | None, prune: float | str | None
) -> list[Hit]:
    """The best passages of the index, with title, score and place among their metadata; pruned if asked.

    A passage of which nothing matters to the query is left out.
    """
    hits = engine.search(query, k, where=where, prune=prune)  # type: ignore[arg-type]
    hits.check_whole()
    return [
        replace(
            hit,
            text=hit.shown_text,
            meta={**hit.meta, "title": hit.title, "relevance_score": hit.score},
        )
        for hit in hits
        if hit.pruned_text != ""
    ]


def ask(
    engine: Engine, question: str, documents: Sequence[Document], k: int, threshold: float
) -> list[tuple[int, Answer]]:
    """The best answers, each with the position of its document."""
    if not documents:
        return []
    listing = recognise(engine, documents)
    answers = engine.ask(question, k, ids=listing.ids, texts=listing.texts, threshold=threshold)
    answers.check_whole()
    return [(listing.positions[answer.passage_id][0], answer) for answer in answers]


def recognise(engine: Engine, documents: Sequence[Document]) -> Listed:
    """Divide documents into those that the index holds word for word, and texts to encode now."""
    stored = _stored(engine, list({d.id: None for d in documents if d.id}))
    # Word for word: the framework may have another text under this id.
    ids = {n: d.id for n, d in enumerate(documents) if d.id and stored.get(d.id) == d.text}
    return listed(ids, {n: d.text for n, d in enumerate(documents) if n not in ids})


def _stored(engine: Engine, ids: Sequence[str]) -> dict[str, str]:
    """The text that the index holds for each id that it knows."""
    if engine.index is None or not ids:
        return {}
    snapshot = engine.index.refresh()
    digests = zip(ids, snapshot.digests(ids), strict=True)
    # `locate` raises for unknown ids, so these are left out first.
    here = [ident for ident, digest in digests if digest is not None]
    return {passage.id: passage.text for passage in joined(snapshot.texts(snapshot.locate(here)))}
