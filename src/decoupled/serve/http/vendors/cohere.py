"""Cohere: POST /v2/rerank; and Cohere v1, Jina and vLLM in one: POST /v1/rerank.

No texts come back from v2. The answer of v1 has every field that one of the three reads. They differ in one
default, which is decided so: `return_documents` as given; else no for Cohere's own client, known by its
headers or by a field that only Cohere has; else yes.
"""

import math
import uuid
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from decoupled.model.jsonable import JsonObject
from decoupled.serve.http.bodies import Reading
from decoupled.serve.http.rerank import (
    EXAMPLE,
    Document,
    Prune,
    TextDocument,
    Usage,
    failures,
    rerank,
)
from decoupled.serve.http.responses import RequestProblem
from decoupled.serve.http.service import Service

DOCUMENTS_PER_UNIT = 100
"""Number of documents that Cohere bills as one search."""


class CohereV2(BaseModel, json_schema_extra={"example": EXAMPLE}):
    """Cohere's `/v2/rerank`."""

    model: str | None = Field(None, description="Any name: this server has one model.")
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[Document], Field(min_length=1, fail_fast=True)]
    top_n: int | None = Field(None, ge=1, description="How many results; all if not given.")
    max_tokens_per_doc: int | None = Field(
        4096, ge=1, description="Longer documents are cut; null, which LangChain sends, cuts none."
    )


class RerankV1(BaseModel, json_schema_extra={"example": EXAMPLE}):
    """`/v1/rerank` of Cohere, Jina and vLLM: every field that one of them has."""

    model: str | None = Field(None, description="Any name: this server has one model.")
    query: Annotated[str, Field(min_length=1)] | TextDocument
    documents: Annotated[list[Document | JsonObject], Field(min_length=1, fail_fast=True)] | str
    top_n: int | None = Field(None, ge=0, description="How many results; all if not given or 0.")
    return_documents: bool | None = Field(
        None,
        description="With their texts? Yes if not given (Jina), but no for Cohere's own client.",
    )
    rank_fields: Annotated[list[str], Field(max_length=64, fail_fast=True)] | None = Field(
        None, description="Cohere: fields of an object to read."
    )
    max_chunks_per_doc: int | None = Field(None, ge=1, description="Cohere: read, and not needed.")
    max_tokens_per_doc: int | None = Field(None, ge=1, description="Longer documents are cut.")
    truncate_prompt_tokens: int | None = Field(None, ge=-1, description="vLLM: the same.")
    use_activation: bool | None = Field(None, description="vLLM: logits if false.")
    raw_scores: bool = Field(False, description="infinity: logits if true.")
    prune: Prune = Field(None, description="Give `pruned_text`: sentences that matter this much.")


class Version(BaseModel):
    """Which of Cohere's APIs this is."""

    version: str
    is_experimental: bool


class Units(BaseModel):
    """Searches of up to 100 documents."""

    search_units: int


class Meta(BaseModel):
    """What Cohere says about a request."""

    api_version: Version
    billed_units: Units


class Place(BaseModel):
    """A document by its place in the request."""

    index: int
    relevance_score: float


class CohereReply(BaseModel):
    """Cohere v2."""

    id: str
    results: list[Place]
    meta: Meta


class PlaceV1(Place):
    """A document by its place in the request, and itself where it is wanted."""

    document: JsonObject | None = None
    pruned_text: str | None = None


class RerankReply(BaseModel):
    """Cohere v1, Jina and vLLM in one."""

    id: str
    model: str
    results: list[PlaceV1]
    usage: Usage
    meta: Meta


class CohereFailure(BaseModel):
    """Cohere's error."""

    id: str
    message: str


def routes(service: Service) -> APIRouter:
    """The routes of Cohere v2, and of Cohere v1, Jina and vLLM."""
    router = APIRouter(route_class=Reading, responses=failures(CohereFailure))

    @router.post("/v2/rerank", responses={200: {"model": CohereReply}})
    async def cohere_v2(body: CohereV2) -> Response:
        """Cohere v2."""
        ranked, computed = await rerank(
            service, body.query, body.documents, max_tokens=body.max_tokens_per_doc
        )
        best = ranked[: body.top_n]
        content = {
            "id": str(uuid.uuid4()),
            "results": [{"index": r.index, "relevance_score": r.score} for r in best],
            "meta": meta("2", len(body.documents)),
        }
        return await service.reply(content, computed)

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
        # vLLM's -1 cuts to what the model reads at once; here longer documents are read in windows.
        max_tokens=body.max_tokens_per_doc or max(body.truncate_prompt_tokens or 0, 0),
        prune=body.prune,
    )
    show = body.return_documents
    if show is None:
        show = not from_cohere(body, request)
    results: list[JsonObject] = []
    for r in ranked[: body.top_n or None]:
        results.append({"index": r.index, "relevance_score": r.score, **r.pruned})
        if show:
            sent = documents[r.index]
            fields = {} if isinstance(sent, str) else dict(sent)
            results[-1]["document"] = {"text": r.text, **fields}
    content = {
        "id": str(uuid.uuid4()),
        "model": body.model or "decoupled",
        "results": results,
        "usage": computed.usage,
        "meta": meta("1", len(documents)),
    }
    return await service.reply(content, computed)


def from_cohere(body: RerankV1, request: Request) -> bool:
    """Whether Cohere's client sent this, which expects no documents unless it asks for them."""
    name = request.headers.get("x-fern-sdk-name", "") or request.headers.get("user-agent", "")
    only = {"rank_fields", "max_chunks_per_doc"} & body.model_fields_set
    return name.lower().startswith("cohere") or bool(only)


def error(problem: RequestProblem) -> tuple[int, JsonObject]:
    """Cohere's `id` and `message`; `detail` is where clients of Jina look."""
    about = {"id": str(uuid.uuid4()), "message": problem.message, "detail": problem.message}
    return problem.status, about


def meta(version: str, count: int) -> JsonObject:
    """The `meta` object of Cohere's replies for a request of `count` documents."""
    return {
        "api_version": {"version": version, "is_experimental": False},
        "billed_units": {"search_units": math.ceil(count / DOCUMENTS_PER_UNIT)},
    }
