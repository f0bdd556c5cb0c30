"""Reranking, as every vendor's routes adapt to it: documents in, scores by their place in the request out.

A vendor is one file of `vendors` with its requests, replies and errors. Wherever a document is a text it may
be `{"id": "…"}`. Scores are probabilities (the sigmoid of the logit), or logits on the vendor's own request
for them. Documents longer than the model are read in windows, and count with their best one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from decoupled.model.jsonable import JsonObject
from decoupled.search.request import listed
from decoupled.serve.http.responses import RequestProblem
from decoupled.serve.http.service import Computed, Service

QUERY = "Who wrote Dracula?"
TEXTS: list[Any] = ["Paris is the capital of France.", "Bram Stoker wrote Dracula in 1897."]
EXAMPLE: JsonObject = {"model": "decoupled", "query": QUERY, "documents": TEXTS}


class TextDocument(BaseModel, extra="allow"):
    """A document as an object; other fields than `text` are kept and returned."""

    text: str


class StoredDocument(BaseModel, extra="allow"):
    """A passage of the index, whose stored states are used."""

    id: Annotated[str, Field(min_length=1)]


Prune = Annotated[float, Field(ge=0, le=1)] | Literal["auto"] | None
"""The probability from which `pruned_text` keeps a sentence; None for no `pruned_text`."""
Document = str | TextDocument | StoredDocument


class Usage(BaseModel):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One document, by its place in the request."""

    index: int
    score: float
    text: str
    """The whole text that was sent; of a stored document, its best window."""
    pruned: JsonObject
    """`pruned_text`, where that was asked for."""


async def rerank(
    service: Service,
    query: str | Sequence[str],
    documents: Sequence[Any],
    *,
    rank_fields: Sequence[str] | None = None,
    raw: bool = False,
    max_tokens: int | None = None,
    keep_end: bool = False,
    prune: Prune = None,
) -> tuple[list[Ranked], Computed]:
    """Score documents for one query, or each for its own; `max_tokens` of each are read, all if none or 0.

    They come back best first, equal ones in the client's order.
    """
    service.limits.check("documents", "the number of documents", len(documents))
    ids, sent = read_documents(documents, rank_fields)
    service.check_texts(sent.values())
    texts = sent
    if max_tokens:
        kept = await service.cut(list(sent.values()), max_tokens, keep_end=keep_end)
        texts = dict(zip(sent, kept, strict=True))
    places: dict[str, list[int]] = {}
    for n in range(len(documents)):
        places.setdefault(query if isinstance(query, str) else query[n], []).append(n)
    # Pairs of one query are one request, so that the query is encoded once.
    groups = {
        query: listed(
            {n: ids[n] for n in numbers if n in ids}, {n: texts[n] for n in numbers if n in texts}
        )
        for query, numbers in places.items()
    }
    computed = await service.run(
        [group.request(query, raw=raw, prune=prune) for query, group in groups.items()]
    )
    ranked = [
        Ranked(
            index=n,
            score=hit.score,
            text=sent.get(n, hit.text),
            pruned={} if hit.pruned_text is None else {"pruned_text": hit.pruned_text},
        )
        for group, hits in zip(groups.values(), computed.hits, strict=True)
        for hit in hits
        for n in group.positions[hit.id]
    ]
    return sorted(ranked, key=lambda r: (-r.score, r.index)), computed


def read_documents(
    documents: Sequence[Any], fields: Sequence[str] | None
) -> tuple[dict[int, str], dict[int, str]]:
    """Ids and texts by place, of strings, objects with a text, and objects with an id, in one list."""
    ids: dict[int, str] = {}
    texts: dict[int, str] = {}
    for place, document in enumerate(documents):
        match document:
            case str():
                texts[place] = document
            case TextDocument() if not fields:
                texts[place] = document.text
            case StoredDocument() if not fields:
                ids[place] = document.id
            case _:
                # Cohere reads the wanted fields of an object as lines `name: value`.
                names, values = fields or (), dict(document)
                lines = [f"{name}: {values[name]}" for name in names if name in values]
                if not lines:
                    expected = ", ".join(names) or "text or id"
                    fault = f"documents.{place} has none of the fields it is read by: {expected}"
                    raise RequestProblem(422, fault)
                texts[place] = "\n".join(lines)
    return ids, texts


def failures(model: type[BaseModel], *more: int) -> dict[int | str, JsonObject]:
    """The errors of a vendor's route, for its description."""
    statuses = sorted({400, 401, 403, 404, 408, 413, 422, 503, 504, *more})
    return {status: {"model": model} for status in statuses}
