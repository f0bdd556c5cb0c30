"""OpenAI: POST /v1/embeddings, with the vectors of the first stage."""

import base64
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from decoupled.model.jsonable import JsonObject
from decoupled.serve.http.bodies import Reading
from decoupled.serve.http.rerank import Usage, failures
from decoupled.serve.http.responses import Json, RequestProblem
from decoupled.serve.http.service import Service


class Embeddings(BaseModel, json_schema_extra={"example": {"input": ["Who wrote Dracula?"]}}):
    """OpenAI's `/v1/embeddings`."""

    input: str | Annotated[list[str], Field(min_length=1, fail_fast=True)]
    model: str | None = Field(None, description="Any name: this server has one model.")
    encoding_format: Literal["float", "base64"] = "float"
    input_type: Literal["query", "passage"] = Field(
        "passage", description="What the texts are; queries have an encoder of their own."
    )


class Embedded(BaseModel):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsReply(BaseModel):
    """Vectors of length one, in the order of the texts."""

    object: Literal["list"]
    data: list[Embedded]
    model: str
    usage: Usage


class OpenaiFault(BaseModel):
    """What went wrong."""

    message: str
    type: str


class OpenaiFailure(BaseModel):
    """OpenAI's error."""

    error: OpenaiFault


def routes(service: Service) -> APIRouter:
    """The route of OpenAI."""
    router = APIRouter(route_class=Reading, responses=failures(OpenaiFailure))

    @router.post("/v1/embeddings", responses={200: {"model": EmbeddingsReply}})
    async def embeddings(body: Embeddings) -> Response:
        """The first-stage vectors of texts."""
        texts = [body.input] if isinstance(body.input, str) else body.input
        vectors, tokens = await service.embed(texts, body.input_type)
        packed = body.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": n, "embedding": _packed(v) if packed else v.tolist()}
            for n, v in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        reply = {"object": "list", "data": data, "model": body.model or "decoupled"}
        return Json({**reply, "usage": usage})

    return router


def _packed(vector: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> str:
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


def error(problem: RequestProblem) -> tuple[int, JsonObject]:
    """OpenAI's shape of an error."""
    kind = "server_error" if problem.status >= 500 else "invalid_request_error"
    fault = {"message": problem.message, "type": kind, "param": None, "code": problem.kind}
    return problem.status, {"error": fault}
