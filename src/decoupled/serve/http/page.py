"""The web page, static files and questions to click, and /docs. Nothing comes from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse

from decoupled.serve.http import reference

STATIC = Path(__file__).parents[1] / "page"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def routes(openapi: Callable[[], dict[str, Any]], questions: Sequence[str]) -> APIRouter:
    """`/` and what it loads, with `questions` as examples; the description of all routes for people."""
    router = APIRouter(include_in_schema=False)
    parts = {path.name: path for path in STATIC.iterdir()}

    @router.get("/")
    async def page() -> FileResponse:
        return FileResponse(parts["index.html"], headers=HEADERS)

    @router.get("/static/questions.json")
    async def examples() -> JSONResponse:
        return JSONResponse({"questions": list(questions)}, headers=HEADERS)

    @router.get("/static/{name}")
    async def part(name: str) -> FileResponse:
        if name not in parts:
            raise HTTPException(404)
        return FileResponse(parts[name], headers=HEADERS)

    @router.get("/docs")
    async def docs(request: Request) -> HTMLResponse:
        return HTMLResponse(reference.page(openapi(), str(request.base_url).rstrip("/")))

    return router
