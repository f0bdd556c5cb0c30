"""The own routes: search, ask, passages, info, health; in the JSON of the command line."""

import hashlib
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field, model_validator
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response

from decoupled.model.jsonable import JsonObject
from decoupled.model.tokens import Passage
from decoupled.search.request import FirstStageName, Request
from decoupled.serve.http.bodies import STOP, Reading
from decoupled.serve.http.responses import Json
from decoupled.serve.http.service import Service

SHARED = {"k", "first_stage", "read", "where", "threshold", "hops", "prune", "highlight"}
"""Fields of a question that a request has under the same names."""
FEW = 5
"""Most unknown fields that an error names."""
Ident = Annotated[str, Path(min_length=1, description="The passage's id.")]


class AnyText(PathConvertor):
    """The rest of a path, line ends included: without, `p1%0A` would be taken for `p1`."""

    regex = "(?s:.*)"


register_url_convertor("text", AnyText())


class Strict(BaseModel, extra="forbid"):
    """Takes the fields that it names, and no others: another is a slip that would go unnoticed."""

    @model_validator(mode="before")
    @classmethod
    def _few_unknown(cls, data: Any) -> Any:
        """Leave a few unknown fields to be complained of, since each costs an error."""
        if not isinstance(data, dict) or len(data) <= len(cls.model_fields):
            return data
        surplus = set([name for name in data if name not in cls.model_fields][FEW:])
        return {name: value for name, value in data.items() if name not in surplus}


class Retrieval(Strict):
    """How passages are chosen and shown."""

    first_stage: FirstStageName = "auto"
    candidates: int = Field(100, ge=1, description="Records that the first stage hands on.")
    read: Literal["auto", "all"] = Field(
        "auto", description="Read the candidates that the model says are enough, or all of them."
    )
    where: JsonObject | None = Field(
        None, description="Filter by metadata.", examples=[{"lang": "en"}]
    )
    prune: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] | None = Field(
        None, description="Give `pruned_text`: sentences that matter with this probability."
    )
    highlight: bool = Field(False, description="Say where the sentence that matters most stands.")
    joint: bool = Field(False, description="Also run the same weights unsplit, for comparison.")


class Search(Retrieval):
    """A query to the index."""

    query: str = Field(min_length=1, examples=["who wrote Dracula?"])
    k: int = Field(10, ge=1, description="How many passages.")
    blend: float = Field(
        1.0,
        ge=0,
        le=1000,
        description="How much BM25 and the cosine add to the rank logit, of what the model learnt.",
    )
    raw: bool = Field(False, description="Logits instead of probabilities.")
    show_first_stage: bool = Field(
        False, description="Say of each hit its rank and score in the first stage."
    )


class Ask(Retrieval):
    """A question to the index, or to the passages that are given."""

    question: str = Field(min_length=1, examples=["Who wrote Dracula?"])
    k: int = Field(3, ge=1, description="How many answers at most.")
    threshold: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = Field(
        "auto",
        description="Reject answers with a lower score; auto: what the model learnt; 0: reject none.",
    )
    hops: int = Field(
        1, ge=1, le=4, description="From 2 on, follow links of the best and read all together."
    )
    ids: Annotated[list[str], STOP] | None = Field(
        None, description="Read these stored passages instead of searching."
    )
    texts: Annotated[list[str], STOP] | None = Field(
        None, description="Read these texts instead of searching."
    )


class PassageBody(Strict):
    """A passage to store."""

    id: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Made from the text if not given."
    )
    text: str
    title: str = ""
    meta: JsonObject = {}


class Passages(Strict):
    """Passages to store; one whose id is there already is replaced."""

    passages: list[PassageBody] = Field(
        min_length=1,
        fail_fast=True,
        examples=[[{"id": "dracula", "text": "Bram Stoker wrote Dracula in 1897."}]],
    )


class TimingShape(BaseModel):
    """Where the milliseconds went."""

    retrieve_ms: float
    fetch_ms: float
    encode_ms: float
    cross_ms: float
    total_ms: float


class PrunedShape(BaseModel):
    """What matters of a text, where pruning was asked for."""

    pruned_text: str | None = Field(None, description="The sentences that matter to the query.")
    kept: list[tuple[int, int]] | None = Field(None, description="Where they stand in the text.")
    sentences: list[tuple[int, int, float]] | None = Field(
        None, description="Start and end of every sentence, and the probability that it matters."
    )
    highlight: tuple[int, int] | None = Field(None, description="Where the best one stands.")


class HitShape(PrunedShape):
    """A passage and its score."""

    id: str
    score: float
    text: str
    title: str
    meta: JsonObject
    offset: int = Field(description="Where `text` begins in a passage longer than the model.")
    first_stage: dict[str, dict[str, float]] | None = Field(
        None, description="Rank and score in each ranking of the first stage, where asked for."
    )


class EvidenceShape(PrunedShape):
    """A place where an answer stands: `passage[start:end]`."""

    passage_id: str
    passage: str
    start: int
    end: int
    score: float
    title: str
    meta: JsonObject
    offset: int


class AnswerShape(EvidenceShape):
    """A span: `passage[start:end] == text`."""

    text: str
    evidence: list[EvidenceShape] = Field(
        description="Every place that says the same, best first; `score` is the sum of theirs."
    )


class Joint(BaseModel):
    """What the same weights unsplit say: hits or answers."""

    hits: list[HitShape] | None = None
    answers: list[AnswerShape] | None = None
    timing: TimingShape
    trained_split: bool


class SearchReply(BaseModel):
    """Passages, best first."""

    query: str
    hits: list[HitShape]
    timing: TimingShape
    notes: list[str] = Field(
        [], description="What is unusual about the query; left out if nothing."
    )
    joint: Joint | None = None


class AskReply(BaseModel):
    """Answers, best first; none where nothing answers the question."""

    question: str
    answers: list[AnswerShape]
    rejected: list[AnswerShape] = Field(description="The best guesses below the threshold.")
    timing: TimingShape
    notes: list[str] = Field(
        [], description="What is unusual about the query; left out if nothing."
    )
    joint: Joint | None = None


class Stored(BaseModel):
    """What became of passages."""

    added: int
    unchanged: int
    replaced: int
    ids: list[str]
    passages: int = Field(description="Passages in the index now.")


class StoredPassage(BaseModel):
    """A passage of the index."""

    id: str
    text: str
    title: str
    meta: JsonObject


class PassageReply(StoredPassage):
    """A passage and its surroundings."""

    around: list[StoredPassage] = Field(
        description="The passages of its document near it, and itself, in the document's order."
    )


class Deleted(BaseModel):
    """What became of a passage."""

    deleted: int
    passages: int = Field(description="Passages in the index now.")


class Status(BaseModel):
    """One word."""

    status: Literal["ok", "ready"]


class Failure(BaseModel):
    """Why there is no result."""

    error: str = Field(examples=["the index has no passage 'p7'"])
    error_type: str = Field(examples=["not_found"])
    request_id: str


ERRORS: dict[int | str, JsonObject] = {
    status: {"model": Failure, "description": about}
    for status, about in {
        400: "Not JSON.",
        401: "An API key is needed.",
        403: "Changes are not allowed.",
        404: "An id that the index does not hold.",
        408: "The body did not arrive in time.",
        409: "Another process is writing to the index.",
        410: "A file that is gone, or is not as it was when it was indexed.",
        413: "A body beyond the limit.",
        422: "A body that does not fit, or is beyond a limit.",
        503: "Too many requests are waiting, or the index cannot be read; see Retry-After.",
        504: "No result within the time limit.",
    }.items()
}


def routes(service: Service) -> APIRouter:
    """Routes that speak the JSON of the command line."""
    router = APIRouter(route_class=Reading, tags=["decoupled"], responses=ERRORS)

    def candidates(body: Search | Ask) -> int:
        """How many to read; the default gives way to the server's limit, a wish does not."""
        if "candidates" in body.model_fields_set:
            return body.candidates
        return min(body.candidates, service.limits.documents)

    @router.post("/v1/search", responses={200: {"model": SearchReply}})
    async def search(body: Search) -> Response:
        """The passages that are most relevant to a query."""
        options = body.model_dump(exclude={"candidates", "joint"})
        count = max(candidates(body), body.k)
        request = Request(head="rank", retrieve=True, candidates=count, **options)
        return await answered(service, request, joint=body.joint)

    @router.post("/v1/ask", responses={200: {"model": AskReply}})
    async def ask(body: Ask) -> Response:
        """Answers to a question: spans of passages."""
        request = Request(
            query=body.question,
            head="span",
            retrieve=body.ids is None and body.texts is None,
            candidates=candidates(body),
            ids=tuple(body.ids or ()),
            texts=tuple(Passage(id=str(n), text=t) for n, t in enumerate(body.texts or ())),
            **body.model_dump(include=SHARED),
        )
        return await answered(service, request, joint=body.joint)

    @router.put("/v1/passages", responses={200: {"model": Stored}})
    async def put_passages(body: Passages) -> Response:
        """Store passages: durable and searchable when this answers. Sending them again changes nothing."""
        passages = tuple(
            Passage(id=p.id or made_id(p.text, p.title), text=p.text, title=p.title, meta=p.meta)
            for p in body.passages
        )
        return Json(await service.add(passages))

    @router.get("/v1/passages/{ident:text}", responses={200: {"model": PassageReply}})
    async def get_passage(ident: Ident) -> Response:
        """A stored passage, with what stands around it in its document."""
        return Json(await service.passage(ident))

    @router.delete("/v1/passages/{ident:text}", responses={200: {"model": Deleted}})
    async def delete_passage(ident: Ident) -> Response:
        """Remove a passage."""
        return Json(await service.delete(ident))

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
    computed = await service.run([request])
    content: JsonObject = computed.results[0].to_json()
    if joint:
        other = (await service.run([request], joint=True)).results[0].to_json()
        kept = {name: other[name] for name in ("hits", "answers", "timing") if name in other}
        content["joint"] = {**kept, "trained_split": service.trained_split}
    return await service.reply(content, computed)


def made_id(text: str, title: str) -> str:
    """An id that depends on title and text, so that the same passage added twice is there once."""
    content = f"{title}\0{text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=8).hexdigest()
