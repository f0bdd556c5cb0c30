"""Reranking in the shapes that clients already speak. Wherever a document is a text it may be `{"id": "…"}`.

POST /v2/rerank          Cohere v2: no texts come back.
POST /v1/rerank          Cohere v1, Jina and vLLM in one: the answer has every field that one of them reads
                         (`id`, `model`, `results`, `usage`, `meta`). They differ in one default, which is
                         decided so: `return_documents` as given; else no for Cohere's own client, known by
                         its headers or by a field that only Cohere has; else yes.
POST /rerank             Text Embeddings Inference, a bare array; with `documents` instead of `texts`, as
                         /v1/rerank.
POST /score, /v1/score   vLLM, in the order of the input.

Scores are probabilities (the sigmoid of the logit), or logits on the vendor's own request for them.
Documents longer than the model are read in windows, and count with their best one.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from pydantic import Discriminator, Tag
from starlette.responses import Response

from decoupled.search.results import Hits
from decoupled.serve.http import documents
from decoupled.serve.http.documents import Given, Ranked
from decoupled.serve.http.problems import Problem
from decoupled.serve.http.replies import reply
from decoupled.serve.http.service import Found, Service
from decoupled.serve.http.shapes import CohereReply, RerankReply, ScoreReply, TeiPlace
from decoupled.serve.http.vendors import (
    CohereFailure,
    CohereV2,
    RerankV1,
    Score,
    Tei,
    TeiFailure,
    TextDocument,
    VllmFailure,
    failures,
)

DOCUMENTS_PER_UNIT = 100
"""What Cohere counts as one search."""


def routes(service: Service) -> APIRouter:
    """Routes of Cohere, Jina, Text Embeddings Inference and vLLM."""
    router = APIRouter(tags=["rerank"])
    cohere_errors = failures(CohereFailure, 400, 401, 404, 408, 413, 422, 503, 504)
    tei_errors = failures(TeiFailure, 400, 401, 404, 408, 413, 422, 424, 429, 503, 504)
    vllm_errors = failures(VllmFailure, 400, 401, 404, 408, 413, 422, 503, 504)
    tei_shapes = list[TeiPlace] | RerankReply

    @router.post("/v2/rerank", responses={200: {"model": CohereReply}, **cohere_errors})
    async def cohere_v2(body: CohereV2) -> Response:
        """Cohere v2."""
        wanted = documents.given(body.documents)
        wanted, found = await scored(service, body.query, wanted, cut=body.max_tokens_per_doc)
        best = wanted.ranked(hits_of(found))[: body.top_n]
        content = {
            "id": str(uuid.uuid4()),
            "results": [{"index": r.index, "relevance_score": r.score} for r in best],
            "meta": meta("2", len(body.documents)),
        }
        return reply(content, found, device=service.device)

    @router.post("/v1/rerank", responses={200: {"model": RerankReply}, **cohere_errors})
    async def rerank_v1(body: RerankV1, request: Request) -> Response:
        """Cohere v1, Jina and vLLM."""
        return await ranked_v1(service, body, request)

    @router.post("/rerank", responses={200: {"model": tei_shapes}, **tei_errors})
    async def tei(
        body: Annotated[
            Annotated[Tei, Tag("tei")] | Annotated[RerankV1, Tag("v1")],
            Discriminator(shape_of),
            Body(),
        ],
        request: Request,
    ) -> Response:
        """Text Embeddings Inference; with `documents` instead of `texts`, as /v1/rerank."""
        if isinstance(body, RerankV1):
            return await ranked_v1(service, body, request)
        wanted, found = await scored(
            service,
            body.query,
            documents.given(body.texts),
            raw=body.raw_scores,
            cut=service.window if body.truncate else None,
            keep_end=body.truncation_direction.lower() == "left",
        )
        content = []
        for place in wanted.ranked(hits_of(found)):
            row: dict[str, Any] = {"index": place.index, "score": place.score}
            content.append({**row, "text": place.text} if body.return_text else row)
        return reply(content, found, device=service.device)

    @router.post("/score", responses={200: {"model": ScoreReply}, **vllm_errors})
    @router.post("/v1/score", responses={200: {"model": ScoreReply}, **vllm_errors})
    async def score(body: Score) -> Response:
        """vLLM: one query with many documents, or pairs."""
        return await pair_scores(service, body)

    return router


SHAPES = ("tei", "v1")
"""What a body of /rerank may be."""


def shape_of(body: Any) -> str:
    """Which shape a body of /rerank has."""
    return "v1" if isinstance(body, dict) and "documents" in body else "tei"


async def scored(
    service: Service,
    query: str,
    wanted: Given,
    *,
    raw: bool = False,
    cut: int | None = None,
    keep_end: bool = False,
) -> tuple[Given, Found]:
    """Score documents, cut to so many tokens each; returns them as they were read."""
    if cut is not None:
        kept = await service.cut(list(wanted.texts.values()), cut, keep_end=keep_end)
        read = Given(ids=wanted.ids, texts=dict(zip(wanted.texts, kept, strict=True)))
    else:
        read = wanted
    return wanted, await service.run([read.request(query, raw=raw)])


def hits_of(found: Found) -> Hits:
    """The only result."""
    (hits,) = found.results
    assert isinstance(hits, Hits)
    return hits


async def ranked_v1(service: Service, body: RerankV1, request: Request) -> Response:
    """The superset of Cohere v1, Jina and vLLM."""
    query = body.query.text if isinstance(body.query, TextDocument) else body.query
    listed = [body.documents] if isinstance(body.documents, str) else body.documents
    cut = body.max_tokens_per_doc or max(body.truncate_prompt_tokens or 0, 0) or None
    raw = body.raw_scores or body.use_activation is False
    wanted = documents.given(listed, body.rank_fields)
    wanted, found = await scored(service, query, wanted, raw=raw, cut=cut)
    best = wanted.ranked(hits_of(found))[: body.top_n or None]
    show = body.return_documents
    if show is None:
        show = not from_cohere(body, request)
    content = {
        "id": str(uuid.uuid4()),
        "model": body.model or "decoupled",
        "results": [row_v1(r, listed[r.index], show) for r in best],
        "usage": {"prompt_tokens": found.tokens, "total_tokens": found.tokens},
        "meta": meta("1", len(listed)),
    }
    return reply(content, found, device=service.device)


def row_v1(place: Ranked, document: Any, show: bool) -> dict[str, Any]:
    """One result, with its document as an object if wanted."""
    row: dict[str, Any] = {"index": place.index, "relevance_score": place.score}
    if show:
        sent = document if isinstance(document, dict) else {}
        if not isinstance(document, str | dict):
            sent = document.model_dump()
        row["document"] = {"text": place.text, **sent}
    return row


def from_cohere(body: RerankV1, request: Request) -> bool:
    """Does Cohere's client, which expects no documents unless it asks for them, send this?"""
    name = request.headers.get("x-fern-sdk-name", "") or request.headers.get("user-agent", "")
    only = {"rank_fields", "max_chunks_per_doc"} & body.model_fields_set
    return name.lower().startswith("cohere") or bool(only)


def meta(version: str, count: int) -> dict[str, Any]:
    """What Cohere says about a request."""
    return {
        "api_version": {"version": version, "is_experimental": False},
        "billed_units": {"search_units": math.ceil(count / DOCUMENTS_PER_UNIT)},
    }


async def pair_scores(service: Service, body: Score) -> Response:
    """Scores in the order of the input; pairs with the same query are read together."""
    if "normalize" in body.model_fields_set:
        raise Problem(status=400, message="normalize was removed; use use_activation")
    queries, listed = sides(body)
    if len(queries) == 1:
        queries = queries * len(listed)
    if len(queries) != len(listed):
        raise Problem(
            status=400,
            message=f"{len(queries)} queries and {len(listed)} documents; give one query, or as many "
            "as documents",
        )
    groups: dict[str, list[int]] = {}
    for place, query in enumerate(queries):
        groups.setdefault(query, []).append(place)
    raw = body.use_activation is False
    cut = max(body.truncate_prompt_tokens or 0, 0)
    wanted = documents.given(listed)
    if cut:
        kept = await service.cut(list(wanted.texts.values()), cut)
        wanted = Given(ids=wanted.ids, texts=dict(zip(wanted.texts, kept, strict=True)))
    parts = [only(wanted, places) for places in groups.values()]
    found = await service.run(
        [part.request(query, raw=raw) for query, part in zip(groups, parts, strict=True)]
    )
    scores: dict[int, float] = {}
    for part, hits in zip(parts, found.results, strict=True):
        assert isinstance(hits, Hits)
        scores.update({r.index: r.score for r in part.ranked(hits)})
    content = {
        "id": f"score-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": body.model or "decoupled",
        "data": [{"index": n, "object": "score", "score": scores[n]} for n in range(len(listed))],
        "usage": {"prompt_tokens": found.tokens, "total_tokens": found.tokens},
    }
    return reply(content, found, device=service.device)


def only(wanted: Given, places: Sequence[int]) -> Given:
    """The documents at these places."""
    chosen = set(places)
    return Given(
        ids={n: i for n, i in wanted.ids.items() if n in chosen},
        texts={n: t for n, t in wanted.texts.items() if n in chosen},
    )


def sides(body: Score) -> tuple[list[str], list[Any]]:
    """Queries and documents, whichever names they came under."""
    names = (
        ("queries", "documents"),
        ("queries", "items"),
        ("text_1", "text_2"),
        ("data_1", "data_2"),
    )
    for left, right in names:
        queries, listed = getattr(body, left), getattr(body, right)
        if queries is not None and listed is not None:
            queries = [queries] if isinstance(queries, str) else queries
            listed = listed if isinstance(listed, list) else [listed]
            if not queries or not listed:
                raise Problem(status=400, message=f"{left} and {right} must not be empty")
            return queries, listed
    raise Problem(
        status=400, message="give queries and documents, or text_1 and text_2, or data_1 and data_2"
    )
