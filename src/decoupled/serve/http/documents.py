"""Documents of a reranking request as the engine takes them, and hits back as places in the client's list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decoupled.model.tokens import Passage
from decoupled.search.request import Request
from decoupled.search.results import Hits
from decoupled.serve.http.problems import Problem
from decoupled.serve.http.vendors import StoredDocument, TextDocument


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One document, by its place in the request."""

    index: int
    score: float
    text: str
    """The whole text that was sent; of a stored document, its best window."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """Documents by place: ids of the index, and texts."""

    ids: Mapping[int, str]
    texts: Mapping[int, str]

    @property
    def _mark(self) -> str:
        """What texts are called, so that none has the name of a stored document."""
        mark = "#"
        while any(i.startswith(mark) for i in self.ids.values()):
            mark += "#"
        return mark

    def request(self, query: str, *, raw: bool = False) -> Request:
        """The request that scores them all."""
        mark = self._mark
        return Request(
            query=query,
            head="rank",
            ids=tuple(dict.fromkeys(self.ids.values())),
            texts=tuple(Passage(id=f"{mark}{n}", text=text) for n, text in self.texts.items()),
            raw=raw,
        )

    def ranked(self, hits: Hits) -> list[Ranked]:
        """All documents, best first, equal ones in the client's order; an id that came twice counts twice."""
        mark, places = self._mark, dict[str, list[int]]()
        for place, ident in self.ids.items():
            places.setdefault(ident, []).append(place)
        found = []
        for hit in hits:
            if hit.id.startswith(mark):
                place = int(hit.id[len(mark) :])
                found.append(Ranked(index=place, score=hit.score, text=self.texts[place]))
            else:
                found += [Ranked(index=p, score=hit.score, text=hit.text) for p in places[hit.id]]
        return sorted(found, key=lambda r: (-r.score, r.index))


def given(documents: Sequence[Any], fields: Sequence[str] | None = None) -> Given:
    """Strings, objects with a text, and objects with an id, in one list."""
    ids: dict[int, str] = {}
    texts: dict[int, str] = {}
    for place, document in enumerate(documents):
        match document:
            case str():
                texts[place] = document
            case TextDocument() if not fields:
                texts[place] = document.text
            case TextDocument() | StoredDocument() if fields:
                texts[place] = joined(document.model_dump(), fields, place)
            case StoredDocument():
                ids[place] = document.id
            case dict():
                texts[place] = joined(document, fields or (), place)
    return Given(ids=ids, texts=texts)


def joined(document: Mapping[str, Any], fields: Sequence[str], place: int) -> str:
    """The wanted fields of an object as lines `name: value`, as Cohere reads them."""
    lines = [f"{name}: {document[name]}" for name in fields if name in document]
    if not lines:
        wanted = ", ".join(fields) or "text or id"
        raise Problem(
            status=422, message=f"documents.{place} has none of the fields it is read by: {wanted}"
        )
    return "\n".join(lines)
