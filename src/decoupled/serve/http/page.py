"""The web page: static files of this package and questions to click. Nothing comes from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse, JSONResponse

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


def routes(questions: Sequence[str] = ()) -> APIRouter:
    """`/` and what it loads; `questions` are offered as examples."""
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

    return router
