"""`create_app`: an engine as an ASGI application. Nothing happens at import."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

import decoupled
from decoupled.model.jsonable import JsonObject
from decoupled.search.engine import Engine
from decoupled.serve.http import files, native, page
from decoupled.serve.http.limits import Access, Limits
from decoupled.serve.http.middleware import ErrorShape, Middleware
from decoupled.serve.http.responses import RequestProblem
from decoupled.serve.http.service import Service
from decoupled.serve.http.vendors import cohere, openai, tei, vllm

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

VENDORS = (cohere, tei, vllm, openai)
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

    agents = _agents(service)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with nullcontext() if agents is None else agents.session_manager.run():
            yield
        await service.close()

    app = FastAPI(
        title="decoupled",
        version=decoupled.__version__,
        description=ABOUT,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        exception_handlers={RequestValidationError: unfit, HTTPException: refused},
    )
    app.state.service = service
    app.include_router(native.routes(service))
    app.include_router(files.routes(service))
    errors: dict[str, ErrorShape] = {}
    for vendor in VENDORS:  # each has its own form of errors, on its own routes
        routes = vendor.routes(service)
        errors |= {r.path: vendor.error for r in routes.routes if isinstance(r, APIRoute)}
        app.include_router(routes, tags=["embed" if vendor is openai else "rerank"])
    app.include_router(page.routes(questions))
    if agents is not None:
        from decoupled.serve.mcp.server import http_route

        app.router.routes.append(http_route(agents))
    app.add_middleware(
        Middleware,
        limits=limits,
        access=access or Access(),
        metrics=service.metrics,
        errors=errors,
        place=lambda: service.place,
    )
    if origins:  # added last, so it is outermost: refusals carry its headers, too
        names = ("allow_methods", "allow_headers", "expose_headers")
        every: JsonObject = {name: ["*"] for name in names}
        app.add_middleware(CORSMiddleware, allow_origins=list(origins), **every)
    return app


def _agents(service: Service) -> MCPServer[Any] | None:
    """The tools of agents, which /mcp offers where the SDK is installed and there is an index."""
    if service.engine.index is None or find_spec("mcp") is None:
        return None
    from decoupled.serve.mcp.server import create_mcp

    async def ready(_: object) -> tuple[Service, list[str]]:
        return service, []

    return create_mcp(ready)


async def unfit(request: Request, error: Exception) -> NoReturn:
    """Raise a `RequestProblem` that names each field that does not fit the schema, never its value."""
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    if any(e["type"] == "json_invalid" for e in faults):
        why = faults[0].get("ctx", {}).get("error", "not JSON")
        raise RequestProblem(400, f"the body is not JSON: {why}")
    message = "; ".join(map(_fault, faults[:5]))
    is_json = "json" in request.headers.get("content-type", "")
    if any(e["loc"] == ("body",) for e in faults) and not is_json:
        message = "send JSON with the header `content-type: application/json`"
    if any(e["type"] == "too_short" and {"documents", "texts"} & set(e["loc"]) for e in faults):
        raise RequestProblem(400, message, kind="empty")
    raise RequestProblem(422, message)


async def refused(request: Request, error: Exception) -> NoReturn:
    """Raise a `RequestProblem` for an unknown route, a wrong method, or a body that is not text."""
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
    raise RequestProblem(status, message, kind=kind, headers=headers)


def _fault(error: JsonObject) -> str:
    """A field by its path in the body, and its fault; tags of a union's shapes, `<…>`, are no part of it."""
    parts = [str(part)[:60] for part in error["loc"][1:]]
    if parts and parts[0].startswith("<"):
        del parts[0]
    unknown = error["type"] == "extra_forbidden"
    fault = "no such field; /docs lists them" if unknown else error["msg"]
    return f"{'.'.join(parts) or 'the body'}: {fault}"
