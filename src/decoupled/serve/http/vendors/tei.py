"""Text Embeddings Inference: POST /rerank, a bare array; with `documents` for `texts` it is /v1/rerank."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Request
from pydantic import BaseModel, Discriminator, Field, Tag
from starlette.responses import Response

from decoupled.model.jsonable import JsonObject
from decoupled.serve.http.bodies import Reading
from decoupled.serve.http.rerank import QUERY, TEXTS, Prune, StoredDocument, failures, rerank
from decoupled.serve.http.responses import RequestProblem
from decoupled.serve.http.service import Service
from decoupled.serve.http.vendors import cohere


class Tei(BaseModel, json_schema_extra={"example": {"query": QUERY, "texts": TEXTS}}):
    """Text Embeddings Inference's `/rerank`."""

    query: str
    texts: Annotated[list[str | StoredDocument], Field(min_length=1, fail_fast=True)]
    raw_scores: bool = Field(False, description="Logits instead of probabilities.")
    return_text: bool = False
    prune: Prune = Field(None, description="Give `pruned_text`: sentences that matter this much.")
    truncate: bool | None = Field(
        False, description="Read only what fits the model at once; else every window is read."
    )
    truncation_direction: Literal["Right", "Left", "right", "left"] = "Right"


class TeiPlace(BaseModel):
    """A text by its place in the request."""

    index: int
    score: float
    text: str | None = None
    pruned_text: str | None = None


class TeiFailure(BaseModel):
    """Text Embeddings Inference's error."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


def shape_of(body: Any) -> str:
    """Which shape a body has; errors leave out tags in angle brackets."""
    v1 = "documents" in body if isinstance(body, dict) else isinstance(body, cohere.RerankV1)
    return "<v1>" if v1 else "<tei>"


Either = Annotated[
    Annotated[Tei, Tag("<tei>")] | Annotated[cohere.RerankV1, Tag("<v1>")],
    Discriminator(shape_of),
    Body(),
]


def routes(service: Service) -> APIRouter:
    """The route of Text Embeddings Inference."""
    router = APIRouter(route_class=Reading, responses=failures(TeiFailure, 424, 429))
    reply = list[TeiPlace] | cohere.RerankReply

    @router.post("/rerank", responses={200: {"model": reply}})
    async def tei(body: Either, request: Request) -> Response:
        """Text Embeddings Inference; with `documents` instead of `texts`, as /v1/rerank."""
        if isinstance(body, cohere.RerankV1):
            return await cohere.reply(service, body, request)
        ranked, computed = await rerank(
            service,
            body.query,
            body.texts,
            raw=body.raw_scores,
            max_tokens=service.window if body.truncate else None,
            keep_end=body.truncation_direction.lower() == "left",
            prune=body.prune,
        )
        content = [
            {"index": r.index, "score": r.score, **({"text": r.text} if body.return_text else {})}
            | r.pruned
            for r in ranked
        ]
        return await service.reply(content, computed)

    return router


def error(problem: RequestProblem) -> tuple[int, JsonObject]:
    """The status and JSON of a problem in this vendor's form, with its own statuses for limits and load."""
    statuses = {"limit": 413, "overloaded": 429, "backend": 424}
    words = {
        "backend": "Backend",
        "internal": "Backend",
        "overloaded": "Overloaded",
        "empty": "Empty",
        "index": "Unhealthy",
    }
    about = {"error": problem.message, "error_type": words.get(problem.kind, "Validation")}
    return statuses.get(problem.kind, problem.status), about
