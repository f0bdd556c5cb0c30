"""Haystack: a retriever, a ranker, and the extractive reader that Haystack itself no longer has.

A pipeline file that names them loads with `allowed_modules=["decoupled.integrations.haystack"]`.
"""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from decoupled.errors import InputError, MissingDependency
from decoupled.integrations import scoring
from decoupled.search.engine import Engine

try:
    from haystack import Document, component, default_to_dict
    from haystack.dataclasses import ExtractedAnswer
except ImportError:
    raise MissingDependency("haystack-ai", "haystack") from None


PUBLIC = "decoupled.integrations.haystack"
"""How programs and pipeline files name this module."""


class _Component:
    """Base of the components: holds an engine, or the folder from which `warm_up` opens one."""

    _source: str | Path | Engine
    _options: tuple[str, ...] = ("top_k",)

    @cached_property
    def _engine(self) -> Engine:
        return self._source if isinstance(self._source, Engine) else Engine(str(self._source))

    def warm_up(self) -> None:
        """Load the model."""
        _ = self._engine

    def to_dict(self) -> dict[str, object]:
        """The component for a pipeline file, with the folder of its index instead of the engine."""
        source: Any = self._source
        if isinstance(source, Engine):
            if source.index is None:
                raise InputError(
                    "the engine was made from a model in memory, which a pipeline file cannot hold; "
                    "give the component the folder of the model or index"
                )
            source = source.index.path
        options = {name: getattr(self, name) for name in self._options}
        return default_to_dict(self, source=str(source), **options)


@component
class DecoupledRetriever(_Component):
    """Finds passages of an index; with `prune`, the sentences of them that matter. `source` has the index."""

    __module__ = PUBLIC
    _options = ("top_k", "filters", "prune")

    def __init__(
        self,
        source: str | Path | Engine,
        top_k: int = 5,
        filters: dict[str, Any] | None = None,
        prune: float | str | None = None,
    ) -> None:
        self._source, self.top_k, self.filters, self.prune = source, top_k, filters, prune

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, top_k: int | None = None, filters: dict[str, Any] | None = None
    ) -> dict[str, list[Document]]:
        """The best passages with their scores; `filters` are conditions as in `Engine.search`."""
        k, where = top_k or self.top_k, filters or self.filters
        hits = scoring.retrieve(self._engine, query, k, where, self.prune)
        shown = [Document(h.id, h.text, meta=dict(h.meta), score=h.score) for h in hits]
        return {"documents": shown}


@component
class DecoupledRanker(_Component):
    """Orders documents by relevance. `source` is an index, a model folder, or a loaded engine.

    A document that the index holds under its id, word for word, is scored from its stored states.
    """

    __module__ = PUBLIC

    def __init__(self, source: str | Path | Engine, top_k: int = 10) -> None:
        self._source, self.top_k = source, top_k

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """The best `top_k` documents with their scores."""
        k = self.top_k if top_k is None else top_k
        ranked = scoring.rank(self._engine, query, _documents(documents), k)
        return {"documents": [replace(documents[place], score=score) for place, score in ranked]}


@component
class DecoupledReader(_Component):
    """Finds answers inside documents: exact spans with offsets, scores that compare across documents."""

    __module__ = PUBLIC
    _options = ("top_k", "score_threshold")

    def __init__(
        self, source: str | Path | Engine, top_k: int = 3, score_threshold: float = 0.0
    ) -> None:
        self._source, self.top_k, self.score_threshold = source, top_k, score_threshold

    @component.output_types(answers=list[ExtractedAnswer])
    def run(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[ExtractedAnswer]]:
        """The best answers above the threshold; an empty list where nothing answers."""
        k = self.top_k if top_k is None else top_k
        answers = scoring.ask(self._engine, query, _documents(documents), k, self.score_threshold)
        span = ExtractedAnswer.Span
        return {
            "answers": [
                ExtractedAnswer(
                    query=query,
                    score=answer.score,
                    data=answer.text,
                    document=documents[place],
                    context=answer.passage,
                    document_offset=span(answer.offset + answer.start, answer.offset + answer.end),
                    context_offset=span(answer.start, answer.end),
                )
                for place, answer in answers
            ]
        }


def _documents(documents: list[Document]) -> list[scoring.Document]:
    """Documents without text (tables, images) count as empty."""
    return [scoring.Document(text=d.content or "", id=d.id) for d in documents]
