"""Jina, Cohere v1 and vLLM in one: POST /v1/rerank. The answer has every field that one of them reads.

They differ in one default, which is decided so: `return_documents` as given; else no for Cohere's own client,
known by its headers or by a field that only Cohere has; else yes.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from decoupled.serve.http.rerank import EXAMPLE, Document, TextDocument, Usage, failures, rerank
from decoupled.serve.http.responses import Json
from decoupled.serve.http.service import Service
from decoupled.serve.http.vendors.cohere import CohereFailure, Meta, Place, meta
from decoupled.serve.http.vendors.cohere import error as error


class RerankV1(BaseModel, json_schema_extra={"example": EXAMPLE}):
    """`/v1/rerank` of Cohere, Jina and vLLM: every field that one of them has."""

    model: str | None = Field(None, description="Any name: this server has one model.")
    query: Annotated[str, Field(min_length=1)] | TextDocument
    documents: Annotated[list[Document | dict[str, Any]], Field(min_length=1)] | str
    top_n: int | None = Field(None, ge=0, description="How many results; all if not given or 0.")
    return_documents: bool | None = Field(
        None,
        description="With their texts? Yes if not given (Jina), but no for Cohere's own client.",
    )
    rank_fields: list[str] | None = Field(None, description="Cohere: fields of an object to read.")
    max_chunks_per_doc: int | None = Field(None, ge=1, description="Cohere: read, and not needed.")
    max_tokens_per_doc: int | None = Field(None, ge=1, description="Longer documents are cut.")
    truncate_prompt_tokens: int | None = Field(None, ge=-1, description="vLLM: the same.")
    use_activation: bool | None = Field(None, description="vLLM: logits if false.")
    raw_scores: bool = Field(False, description="infinity: logits if true.")


class PlaceV1(Place):
    """A document by its place in the request, and itself where it is wanted."""

    document: dict[str, Any] | None = None


class RerankReply(BaseModel):
    """Cohere v1, Jina and vLLM in one."""

    id: str
    model: str
    results: list[PlaceV1]
    usage: Usage
    meta: Meta


def routes(service: Service) -> APIRouter:
    """The route of Cohere v1, Jina and vLLM."""
    router = APIRouter(responses=failures(CohereFailure))

    @router.post("/v1/rerank", responses={200: {"model": RerankReply}})
    async def rerank_v1(body: RerankV1, request: Request) -> Response:
        """Cohere v1, Jina and vLLM."""
        return await reply(service, body, request)

    return router


async def reply(service: Service, body: RerankV1, request: Request) -> Response:
    """The superset of Cohere v1, Jina and vLLM."""
    documents = [body.documents] if isinstance(body.documents, str) else body.documents
    ranked, computed = await rerank(
        service,
        body.query.text if isinstance(body.query, TextDocument) else body.query,
        documents,
        rank_fields=body.rank_fields,
        raw=body.raw_scores or body.use_activation is False,
        max_tokens=body.max_tokens_per_doc or max(body.truncate_prompt_tokens or 0, 0),
    )
    show = body.return_documents
    if show is None:
        show = not from_cohere(body, request)
    results: list[dict[str, Any]] = []
    for r in ranked[: body.top_n or None]:
        results.append({"index": r.index, "relevance_score": r.score})
        if show:
            sent = documents[r.index]
            sent = sent.model_dump() if isinstance(sent, BaseModel) else sent
            results[-1]["document"] = {"text": r.text} | (sent if isinstance(sent, dict) else {})
    content = {
        "id": str(uuid.uuid4()),
        "model": body.model or "decoupled",
        "results": results,
        "usage": computed.usage,
        "meta": meta("1", len(documents)),
    }
    return Json(content, headers=computed.headers)


def from_cohere(body: RerankV1, request: Request) -> bool:
    """Does Cohere's client, which expects no documents unless it asks for them, send this?"""
    name = request.headers.get("x-fern-sdk-name", "") or request.headers.get("user-agent", "")
    only = {"rank_fields", "max_chunks_per_doc"} & body.model_fields_set
    return name.lower().startswith("cohere") or bool(only)
