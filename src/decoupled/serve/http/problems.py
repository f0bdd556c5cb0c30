"""What goes wrong, as a status and a body. Each route's errors have the shape its clients expect."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from decoupled.errors import (
    DecoupledError,
    IndexBusy,
    InputError,
    MissingDependency,
    MissingRecord,
    SpecError,
)


@dataclass(kw_only=True)
class Problem(Exception):
    """An answer that is not a result."""

    status: int
    message: str
    kind: str = "validation"
    """One word for programs."""
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


def too_long(what: str, size: float, limit: str, bound: float, *, status: int = 422) -> Problem:
    """A request beyond a limit, which is named."""
    message = f"{what} is {size:,}; this server's limit {limit} is {bound:,}"
    return Problem(status=status, message=message, kind="limit")


def overloaded(after: float) -> Problem:
    """Too much is waiting already."""
    return Problem(
        status=503,
        message="too many requests are waiting; try again later",
        kind="overloaded",
        headers={"retry-after": str(max(1, round(after)))},
    )


def of(error: BaseException) -> Problem:
    """Any error as a problem; what nobody expected says nothing about its cause."""
    match error:
        case Problem():
            return error
        case MissingRecord():
            return Problem(status=404, message=str(error), kind="not_found")
        case IndexBusy():
            after = {"retry-after": "1"}
            return Problem(status=409, message=str(error), kind="busy", headers=after)
        case SpecError():
            return Problem(status=422, message=str(error), kind="backend")
        case InputError() | MissingDependency():
            return Problem(status=422, message=str(error))
        case MemoryError():
            message = "the request does not fit into memory; send fewer or shorter texts"
            return Problem(status=413, message=message, kind="memory")
        case DecoupledError() | OSError():
            message = (
                str(error) if isinstance(error, DecoupledError) else "the index cannot be read"
            )
            return Problem(status=503, message=message, kind="index", headers={"retry-after": "5"})
    return Problem(status=500, message="an unexpected error; the log has it", kind="internal")


Body = Callable[[Problem, str], dict[str, Any]]
"""The JSON of a problem, given the request's id."""


def own(problem: Problem, request_id: str) -> dict[str, Any]:
    """The shape of this server."""
    return {"error": problem.message, "error_type": problem.kind, "request_id": request_id}


def cohere(problem: Problem, _: str) -> dict[str, Any]:
    """Cohere's `id` and `message`; `detail` is where clients of Jina look."""
    return {"id": str(uuid.uuid4()), "message": problem.message, "detail": problem.message}


def tei(problem: Problem, _: str) -> dict[str, Any]:
    """Text Embeddings Inference: `error` and one of its words."""
    words = {
        "backend": "Backend",
        "internal": "Backend",
        "overloaded": "Overloaded",
        "empty": "Empty",
        "index": "Unhealthy",
    }
    return {"error": problem.message, "error_type": words.get(problem.kind, "Validation")}


def vllm(problem: Problem, _: str) -> dict[str, Any]:
    """vLLM, which follows OpenAI."""
    kind = "BadRequestError" if problem.status < 500 else "InternalServerError"
    about = {"message": problem.message, "type": kind, "param": None, "code": problem.status}
    return {"error": about}


_DIALECTS: Mapping[str, Body] = {
    "/v1/rerank": cohere,
    "/v2/rerank": cohere,
    "/rerank": tei,
    "/score": vllm,
    "/v1/score": vllm,
}


def body_for(path: str, problem: Problem, request_id: str) -> dict[str, Any]:
    """The JSON of a problem, as the clients of a route expect it."""
    return _DIALECTS.get(path, own)(problem, request_id)


def status_for(path: str, problem: Problem) -> int:
    """The status; Text Embeddings Inference has its own for limits and load."""
    if path == "/rerank":
        return {"limit": 413, "overloaded": 429, "backend": 424}.get(problem.kind, problem.status)
    return problem.status
