"""Cohere: POST /v2/rerank. No texts come back. Its v1 is served with Jina's."""

from __future__ import annotations

import math
import uuid
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from decoupled.serve.http.rerank import EXAMPLE, Document, failures, rerank
from decoupled.serve.http.responses import Json, Problem
from decoupled.serve.http.service import Service

DOCUMENTS_PER_UNIT = 100
"""What Cohere counts as one search."""


class CohereV2(BaseModel, json_schema_extra={"example": EXAMPLE}):
    """Cohere's `/v2/rerank`."""

    model: str | None = Field(None, description="Any name: this server has one model.")
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[Document], Field(min_length=1)]
    top_n: int | None = Field(None, ge=1, description="How many results; all if not given.")
    max_tokens_per_doc: int | None = Field(
        4096, ge=1, description="Longer documents are cut; null, which LangChain sends, cuts none."
    )


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


class CohereFailure(BaseModel):
    """Cohere's error."""

    id: str
    message: str


def routes(service: Service) -> APIRouter:
    """The routes of Cohere v2."""
    router = APIRouter(responses=failures(CohereFailure))

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
        return Json(content, headers=computed.headers)

    return router


def error(problem: Problem) -> tuple[int, dict[str, Any]]:
    """Cohere's `id` and `message`; `detail` is where clients of Jina look."""
    about = {"id": str(uuid.uuid4()), "message": problem.message, "detail": problem.message}
    return problem.status, about


def meta(version: str, count: int) -> dict[str, Any]:
    """What Cohere says about a request of so many documents."""
    return {
        "api_version": {"version": version, "is_experimental": False},
        "billed_units": {"search_units": math.ceil(count / DOCUMENTS_PER_UNIT)},
    }
