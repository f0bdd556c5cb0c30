"""Bodies of the reranking routes, as their vendors define them. Unknown fields are ignored, as they do."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

QUERY = "Who wrote Dracula?"
TEXTS: list[Any] = ["Paris is the capital of France.", "Bram Stoker wrote Dracula in 1897."]
RERANK: dict[str, Any] = {"model": "decoupled", "query": QUERY, "documents": TEXTS}


class TextDocument(BaseModel):
    """A document as an object; other fields than `text` are kept and returned."""

    model_config = ConfigDict(extra="allow")

    text: str


class StoredDocument(BaseModel):
    """A passage of the index, whose stored states are used."""

    model_config = ConfigDict(extra="allow")

    id: Annotated[str, Field(min_length=1)]


Fields = dict[str, Any]
Document = str | TextDocument | StoredDocument
Documents = Annotated[list[Document], Field(min_length=1)]


class CohereV2(BaseModel):
    """Cohere's `/v2/rerank`."""

    model_config = ConfigDict(json_schema_extra={"example": RERANK})

    model: str | None = Field(None, description="Any name: this server has one model.")
    query: Annotated[str, Field(min_length=1)]
    documents: Documents
    top_n: int | None = Field(None, ge=1, description="How many results; all if not given.")
    max_tokens_per_doc: int | None = Field(
        4096, ge=1, description="Longer documents are cut; null, which LangChain sends, cuts none."
    )


class RerankV1(BaseModel):
    """`/v1/rerank` of Cohere, Jina and vLLM: every field that one of them has."""

    model_config = ConfigDict(json_schema_extra={"example": RERANK})

    model: str | None = Field(None, description="Any name: this server has one model.")
    query: Annotated[str, Field(min_length=1)] | TextDocument
    documents: Annotated[list[Document | Fields], Field(min_length=1)] | str
    top_n: int | None = Field(None, ge=0, description="How many results; all if not given or 0.")
    return_documents: bool | None = Field(
        None,
        description="With their texts? Yes if not given (Jina), but no for Cohere's own client.",
    )
    rank_fields: list[str] | None = Field(None, description="Cohere: fields of an object to read.")
    max_chunks_per_doc: int | None = Field(None, ge=1, description="Cohere: read, and not needed.")
    max_tokens_per_doc: int | None = Field(None, ge=1, description="Longer documents are cut.")
    truncate_prompt_tokens: int | None = Field(None, ge=-1, description="vLLM: the same.")
    use_activation: bool | None = Field(None, description="vLLM: logits if false.")
    raw_scores: bool = Field(False, description="infinity: logits if true.")


class Tei(BaseModel):
    """Text Embeddings Inference's `/rerank`."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"query": QUERY, "texts": TEXTS},
        }
    )

    query: str
    texts: Annotated[list[str | StoredDocument], Field(min_length=1)]
    raw_scores: bool = Field(False, description="Logits instead of probabilities.")
    return_text: bool = False
    truncate: bool | None = Field(
        False, description="Read only what fits the model at once; else every window is read."
    )
    truncation_direction: Literal["Right", "Left", "right", "left"] = "Right"


Texts = str | list[Document] | StoredDocument | TextDocument


class Score(BaseModel):
    """vLLM's `/score`: one with one, one with many, or pairs."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"text_1": QUERY, "text_2": TEXTS},
        }
    )

    model: str | None = None
    queries: str | list[str] | None = None
    documents: Texts | None = None
    items: Texts | None = None
    text_1: str | list[str] | None = None
    text_2: Texts | None = None
    data_1: str | list[str] | None = None
    data_2: Texts | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    use_activation: bool | None = Field(None, description="Logits if false.")
    normalize: Any = Field(None, description="Was removed by vLLM: sending it is an error.")


class CohereFailure(BaseModel):
    """Cohere's error."""

    id: str
    message: str


class TeiFailure(BaseModel):
    """Text Embeddings Inference's error."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


class VllmError(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    code: int


class VllmFailure(BaseModel):
    """vLLM's error."""

    error: VllmError


def failures(model: type[BaseModel], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for its description."""
    return {status: {"model": model} for status in statuses}
