"""What the routes answer, for their description; the documents themselves are made by the routes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class TimingShape(BaseModel):
    """Where the milliseconds went."""

    retrieve_ms: float
    fetch_ms: float
    encode_ms: float
    cross_ms: float
    total_ms: float


class HitShape(BaseModel):
    """A passage and its score."""

    id: str
    score: float
    text: str
    title: str
    meta: dict[str, Any]
    offset: int = Field(description="Where `text` begins in a document longer than the model.")


class AnswerShape(BaseModel):
    """A span: `passage[start:end] == text`."""

    text: str
    score: float
    start: int
    end: int
    passage_id: str
    passage: str
    offset: int


class JointHits(BaseModel):
    """What the same weights unsplit say."""

    hits: list[HitShape]
    timing: TimingShape
    trained_split: bool


class JointAnswers(BaseModel):
    """What the same weights unsplit say."""

    answers: list[AnswerShape]
    timing: TimingShape
    trained_split: bool


class SearchReply(BaseModel):
    """Passages, best first."""

    query: str
    hits: list[HitShape]
    timing: TimingShape
    joint: JointHits | None = None


class AskReply(BaseModel):
    """Answers, best first; none where nothing answers the question."""

    question: str
    answers: list[AnswerShape]
    timing: TimingShape
    joint: JointAnswers | None = None


class Stored(BaseModel):
    """What became of passages."""

    added: int
    unchanged: int
    replaced: int
    ids: list[str]
    passages: int = Field(description="Passages in the index now.")


class Deleted(BaseModel):
    """What became of a passage."""

    deleted: int
    passages: int = Field(description="Passages in the index now.")


class Status(BaseModel):
    """One word."""

    status: Literal["ok", "ready"]


class Version(BaseModel):
    """Which of Cohere's APIs this is."""

    version: str
    is_experimental: bool


class Units(BaseModel):
    """Searches of up to 100 documents."""

    search_units: int


class Meta(BaseModel):
    """What Cohere says about a request."""

    api_version: Version
    billed_units: Units


class Usage(BaseModel):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class Place(BaseModel):
    """A document by its place in the request."""

    index: int
    relevance_score: float


class PlaceV1(Place):
    """A document by its place in the request, and itself where it is wanted."""

    document: dict[str, Any] | None = None


class CohereReply(BaseModel):
    """Cohere v2."""

    id: str
    results: list[Place]
    meta: Meta


class RerankReply(BaseModel):
    """Cohere v1, Jina and vLLM in one."""

    id: str
    model: str
    results: list[PlaceV1]
    usage: Usage
    meta: Meta


class TeiPlace(BaseModel):
    """A text by its place in the request."""

    index: int
    score: float
    text: str | None = None


class PairScore(BaseModel):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class ScoreReply(BaseModel):
    """vLLM, in the order of the input."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PairScore]
    usage: Usage
