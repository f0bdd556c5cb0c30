"""The own routes: search, ask, passages, info, health."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from decoupled.server.schemas import Ask, Passages, Search
from decoupled.server.service import Service


def routes(service: Service) -> APIRouter:
    """Routes that speak the JSON of the command line."""
    router = APIRouter()

    @router.post("/v1/search")
    async def search(body: Search) -> JSONResponse:
        """The passages that are most relevant to a query."""
        return JSONResponse(await service.search(body))

    @router.post("/v1/ask")
    async def ask(body: Ask) -> JSONResponse:
        """Answers to a question: spans of passages."""
        return JSONResponse(await service.ask(body))

    @router.put("/v1/passages")
    async def put_passages(body: Passages) -> JSONResponse:
        """Store passages: durable and searchable when this answers."""
        return JSONResponse(await service.add(body.passages))

    @router.delete("/v1/passages/{ident:path}")
    async def delete_passage(ident: str) -> JSONResponse:
        """Remove a passage."""
        return JSONResponse(await service.delete(ident))

    @router.get("/v1/info")
    async def info() -> JSONResponse:
        """What the index holds and which model made it."""
        return JSONResponse(await service.info())

    @router.get("/health")
    async def health() -> JSONResponse:
        """The process answers."""
        return JSONResponse({"status": "ok"})

    @router.get("/ready")
    async def ready() -> JSONResponse:
        """The model is loaded and the index is open."""
        await service.ready()
        return JSONResponse({"status": "ready"})

    return router
