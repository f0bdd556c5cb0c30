"""`create_app`: an engine as an ASGI application. Nothing happens at import."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, Response

import decoupled
from decoupled.search.engine import Engine
from decoupled.serve.http import native, page, problems, reference, rerank
from decoupled.serve.http.access import Access
from decoupled.serve.http.gate import Gate
from decoupled.serve.http.limits import Limits
from decoupled.serve.http.problems import Problem
from decoupled.serve.http.replies import Json
from decoupled.serve.http.rerank import SHAPES
from decoupled.serve.http.service import Service

ABOUT = """Passages are encoded once, when they are indexed; a query runs only the upper layers.
Wherever a document is a text it may also be `{"id": "…"}`: then its stored states are used."""


def create_app(
    engine: Engine,
    *,
    limits: Limits | None = None,
    access: Access | None = None,
    origins: Sequence[str] = (),
    questions: Sequence[str] = (),
) -> FastAPI:
    """The application for one engine.

    `origins` are web sites whose pages may call it; `questions` are offered on its own page.
    """
    limits = limits or Limits()
    service = Service(engine, limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(
        title="decoupled",
        version=decoupled.__version__,
        description=ABOUT,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.add_middleware(Gate, limits=limits, access=access or Access(), metrics=service.metrics)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    app.add_exception_handler(RequestValidationError, unfit)
    app.add_exception_handler(HTTPException, refused)
    app.include_router(native.routes(service))
    app.include_router(rerank.routes(service))

    app.include_router(page.routes(questions))

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return HTMLResponse(reference.page(app.openapi(), str(request.base_url).rstrip("/")))

    return app


async def unfit(request: Request, error: Exception) -> Response:
    """A body that does not fit the schema: each field with what is wrong, never its value."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(e["type"] == "json_invalid" for e in found):
        why = found[0].get("ctx", {}).get("error", "not JSON")
        return failure(request, Problem(status=400, message=f"the body is not JSON: {why}"))
    message = "; ".join(f"{_place(e['loc'])}: {_fault(e)}" for e in found[:5])
    if any(e["loc"] == ("body",) for e in found) and not _is_json(request):
        message = "send JSON with the header `content-type: application/json`"
    empty = any(e["type"] == "too_short" and {"documents", "texts"} & set(e["loc"]) for e in found)
    if empty:
        return failure(request, Problem(status=400, message=message, kind="empty"))
    return failure(request, Problem(status=422, message=message))


async def refused(request: Request, error: Exception) -> Response:
    """No such route, or not with this method; or a body that is no text."""
    assert isinstance(error, HTTPException)
    status, headers, kind = error.status_code, dict(error.headers or {}), "validation"
    message = str(error.detail)
    if status == 404:
        kind, message = "not_found", "there is nothing at this path; /docs lists the routes"
    elif status == 405:
        taken = headers.get("Allow") or headers.get("allow", "another method")
        message = f"this path takes {taken}, not {request.method[:20]}; /docs lists the routes"
    elif status == 400:
        message = "the body is not JSON in UTF-8"
    return failure(request, Problem(status=status, message=message, kind=kind, headers=headers))


def failure(request: Request, problem: Problem) -> Response:
    """A problem in the shape that the route's clients expect."""
    path = request.url.path
    body = problems.body_for(path, problem, request.state.request_id)
    return Json(body, problems.status_for(path, problem), headers=problem.headers)


def _place(loc: Sequence[Any]) -> str:
    """A field by its path, without the name of the shape that /rerank took the body for."""
    parts = [str(part)[:60] for part in loc[1:]]
    if parts and parts[0] in SHAPES:
        del parts[0]
    return ".".join(parts) or "the body"


def _fault(error: dict[str, Any]) -> str:
    return (
        "no such field; /docs lists them"
        if error["type"] == "extra_forbidden"
        else str(error["msg"])
    )


def _is_json(request: Request) -> bool:
    return "json" in request.headers.get("content-type", "")
