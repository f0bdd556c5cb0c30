"""`create_app`: an engine as an ASGI application. Nothing happens at import."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse

import decoupled
from decoupled.engine import Engine
from decoupled.errors import DecoupledError
from decoupled.server import native
from decoupled.server.limits import Limits
from decoupled.server.service import Service

STATIC = Path(__file__).parent / "static"


def create_app(engine: Engine, *, limits: Limits | None = None) -> FastAPI:
    """The server's application for one engine."""
    service = Service(engine, limits or Limits())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(title="decoupled", version=decoupled.__version__, lifespan=lifespan)

    @app.exception_handler(DecoupledError)
    async def expected(_: Request, error: DecoupledError) -> JSONResponse:
        return JSONResponse({"error": str(error), "error_type": type(error).__name__}, 422)

    app.include_router(native.routes(service))

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    return app
