"""vLLM: POST /score and /v1/score, in the order of the input. Its /v1/rerank is served with Cohere's."""

import time
import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from decoupled.model.jsonable import JsonObject
from decoupled.serve.http.bodies import STOP, Reading
from decoupled.serve.http.rerank import (
    QUERY,
    TEXTS,
    Document,
    StoredDocument,
    TextDocument,
    Usage,
    failures,
    rerank,
)
from decoupled.serve.http.responses import RequestProblem
from decoupled.serve.http.service import Service

Queries = str | Annotated[list[str], STOP]
Texts = str | Annotated[list[Document], STOP] | StoredDocument | TextDocument

SIDES = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
"""The names under which queries and documents may come."""


class Score(BaseModel, json_schema_extra={"example": {"text_1": QUERY, "text_2": TEXTS}}):
    """vLLM's `/score`: one with one, one with many, or pairs."""

    model: str | None = None
    queries: Queries | None = None
    documents: Texts | None = None
    items: Texts | None = None
    text_1: Queries | None = None
    text_2: Texts | None = None
    data_1: Queries | None = None
    data_2: Texts | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    use_activation: bool | None = Field(None, description="Logits if false.")
    normalize: Any = Field(None, description="Was removed by vLLM: sending it is an error.")

    def sides(self) -> tuple[list[str], list[Any]]:
        """Queries and documents, whichever names they came under."""
        for left, right in SIDES:
            queries, documents = getattr(self, left), getattr(self, right)
            if queries is not None and documents is not None:
                queries = [queries] if isinstance(queries, str) else queries
                documents = documents if isinstance(documents, list) else [documents]
                if not queries or not documents:
                    raise RequestProblem(400, f"{left} and {right} must not be empty")
                return queries, documents
        raise RequestProblem(
            400, "give queries and documents, or text_1 and text_2, or data_1 and data_2"
        )


class PairScore(BaseModel):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class ScoreReply(BaseModel):
    """vLLM, in the order of the input."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PairScore]
    usage: Usage


class VllmError(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    code: int


class VllmFailure(BaseModel):
    """vLLM's error."""

    error: VllmError


def routes(service: Service) -> APIRouter:
    """The routes of vLLM."""
    router = APIRouter(route_class=Reading, responses=failures(VllmFailure))

    @router.post("/score", responses={200: {"model": ScoreReply}})
    @router.post("/v1/score", responses={200: {"model": ScoreReply}})
    async def score(body: Score) -> Response:
        """vLLM: one query with many documents, or pairs."""
        if "normalize" in body.model_fields_set:
            raise RequestProblem(400, "normalize was removed; use use_activation")
        queries, documents = body.sides()
        if len(queries) not in (1, len(documents)):
            counts = f"{len(queries)} queries and {len(documents)} documents"
            raise RequestProblem(400, f"{counts}; give one query, or as many as documents")
        ranked, computed = await rerank(
            service,
            queries[0] if len(queries) == 1 else queries,
            documents,
            raw=body.use_activation is False,
            # -1 cuts to what the model reads at once; here longer documents are read in windows.
            max_tokens=max(body.truncate_prompt_tokens or 0, 0),
        )
        in_order = sorted(ranked, key=lambda r: r.index)
        content = {
            "id": f"score-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model or "decoupled",
            "data": [{"index": r.index, "object": "score", "score": r.score} for r in in_order],
            "usage": computed.usage,
        }
        return await service.reply(content, computed)

    return router


def error(problem: RequestProblem) -> tuple[int, JsonObject]:
    """The status and JSON of a problem in vLLM's form, which follows OpenAI's."""
    kind = "BadRequestError" if problem.status < 500 else "InternalServerError"
    about = {"message": problem.message, "type": kind, "param": None, "code": problem.status}
    return problem.status, {"error": about}
