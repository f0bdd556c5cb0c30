"""The own routes: search, ask, passages, info, health."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from decoupled.model.tokens import Passage
from decoupled.search.request import Request
from decoupled.serve.http.replies import Json, reply
from decoupled.serve.http.schemas import ERRORS, Ask, Passages, Search
from decoupled.serve.http.service import Service
from decoupled.serve.http.shapes import AskReply, Deleted, SearchReply, Status, Stored
from decoupled.serve.http.writer import Change, made_id


def routes(service: Service) -> APIRouter:
    """Routes that speak the JSON of the command line."""
    router = APIRouter(tags=["decoupled"], responses=ERRORS)

    def read(body: Search | Ask) -> int:
        """How many candidates; the default gives way to the server's limit, a wish does not."""
        if "candidates" in body.model_fields_set:
            return body.candidates
        return min(body.candidates, service.limits.documents)

    @router.post("/v1/search", responses={200: {"model": SearchReply}})
    async def search(body: Search) -> Response:
        """The passages that are most relevant to a query."""
        request = Request(
            query=body.query,
            head="rank",
            k=body.k,
            retrieve=True,
            first_stage=body.first_stage,
            candidates=max(read(body), body.k),
            where=body.where,
            raw=body.raw,
        )
        return await answered(service, request, joint=body.joint)

    @router.post("/v1/ask", responses={200: {"model": AskReply}})
    async def ask(body: Ask) -> Response:
        """Answers to a question: spans of passages."""
        request = Request(
            query=body.question,
            head="span",
            k=body.k,
            retrieve=body.ids is None and body.texts is None,
            first_stage=body.first_stage,
            candidates=read(body),
            where=body.where,
            ids=tuple(body.ids or ()),
            texts=tuple(Passage(id=str(n), text=t) for n, t in enumerate(body.texts or ())),
            threshold=body.threshold,
        )
        return await answered(service, request, joint=body.joint)

    @router.put("/v1/passages", responses={200: {"model": Stored}})
    async def put_passages(body: Passages) -> Response:
        """Store passages: durable and searchable when this answers. Sending them again changes nothing."""
        passages = tuple(
            Passage(id=p.id or made_id(p.text, p.title), text=p.text, title=p.title, meta=p.meta)
            for p in body.passages
        )
        return Json(await service.change(Change(add=passages)))

    @router.delete("/v1/passages/{ident:path}", responses={200: {"model": Deleted}})
    async def delete_passage(
        ident: Annotated[str, Path(min_length=1, description="The passage's id.")],
    ) -> Response:
        """Remove a passage."""
        return Json(await service.change(Change(delete=ident)))

    @router.get("/v1/info")
    async def info() -> Response:
        """What the index holds and which model made it."""
        return Json(await service.info())

    @router.get("/health", responses={200: {"model": Status}})
    async def health() -> Response:
        """The process answers."""
        return Json({"status": "ok"})

    @router.get("/ready", responses={200: {"model": Status}})
    async def ready() -> Response:
        """The model is loaded and the index is open."""
        await service.ready()
        return Json({"status": "ready"})

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    return router


async def answered(service: Service, request: Request, *, joint: bool) -> Response:
    """The request's result, with that of the joint model where it is asked for."""
    found = await service.run([request])
    content: dict[str, Any] = found.results[0].to_json()
    if joint:
        other = (await service.run([request], joint=True)).results[0].to_json()
        name = "hits" if request.head == "rank" else "answers"
        content["joint"] = {
            name: other[name],
            "timing": other["timing"],
            "trained_split": service.trained_split,
        }
    return reply(content, found, device=service.device)
