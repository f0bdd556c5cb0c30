"""Bodies of the own routes. An unknown field is refused: it is a slip that would go unnoticed, or be lost."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Stage = Literal["auto", "lexical", "dense", "hybrid"]


class Strict(BaseModel):
    """Takes the fields that it names, and no others."""

    model_config = ConfigDict(extra="forbid")


class Search(Strict):
    """A query to the index."""

    query: str = Field(min_length=1, examples=["who wrote Dracula?"])
    k: int = Field(10, ge=1, description="How many passages.")
    first_stage: Stage = "auto"
    candidates: int = Field(100, ge=1, description="Records that the first stage hands on.")
    where: dict[str, Any] | None = Field(
        None, description="Filter by metadata.", examples=[{"lang": "en"}]
    )
    raw: bool = Field(False, description="Logits instead of probabilities.")
    joint: bool = Field(False, description="Also run the same weights unsplit, for comparison.")


class Ask(Strict):
    """A question to the index, or to the passages that are given."""

    question: str = Field(min_length=1, examples=["Who wrote Dracula?"])
    k: int = Field(3, ge=1, description="How many answers.")
    first_stage: Stage = "auto"
    candidates: int = Field(100, ge=1, description="Records that the first stage hands on.")
    where: dict[str, Any] | None = Field(None, description="Filter by metadata.")
    threshold: float = Field(
        0.0, allow_inf_nan=False, description="Leave out answers with a lower score."
    )
    ids: list[str] | None = Field(
        None, description="Read these stored passages instead of searching."
    )
    texts: list[str] | None = Field(None, description="Read these texts instead of searching.")
    joint: bool = Field(False, description="Also run the same weights unsplit, for comparison.")


class PassageBody(Strict):
    """A passage to store."""

    id: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Made from the text if not given."
    )
    text: str
    title: str = ""
    meta: dict[str, Any] = {}


class Passages(Strict):
    """Passages to store; one whose id is there already is replaced."""

    passages: list[PassageBody] = Field(
        min_length=1,
        examples=[[{"id": "dracula", "text": "Bram Stoker wrote Dracula in 1897."}]],
    )


class Failure(BaseModel):
    """Why there is no result."""

    error: str = Field(examples=["the index has no passage 'p7'"])
    error_type: str = Field(examples=["not_found"])
    request_id: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Failure, "description": about}
    for status, about in {
        400: "Not JSON.",
        401: "An API key is needed.",
        403: "Changes are not allowed.",
        404: "An id that the index does not hold.",
        408: "The body did not arrive in time.",
        409: "Another process is writing to the index.",
        413: "A body beyond the limit.",
        422: "A body that does not fit, or is beyond a limit.",
        503: "Too many requests are waiting, or the index cannot be read; see Retry-After.",
        504: "No result within the time limit.",
    }.items()
}
