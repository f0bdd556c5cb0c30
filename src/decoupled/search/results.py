"""What the engine returns: plain values, JSON as the command line and the server print it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import TYPE_CHECKING, Any, TypeVar, overload

from decoupled.errors import DecoupledError

if TYPE_CHECKING:
    from decoupled.index.origins import Origins


def percent(share: float) -> str:
    """A probability as every output writes it: `84 %`, with a digit more below ten."""
    return f"{100 * share:.{int(share < 0.0995)}f} %"


Spans = tuple[tuple[int, int], ...]
# Fields that JSON has only where they have a value; what pruning left may be empty.
_RARE = frozenset({"first_stage", "link", "highlight"})
_PRUNED = frozenset({"pruned_text", "kept", "sentences"})


def _shown(result: Any) -> dict[str, object]:
    """The fields of a hit or a place; what was not asked for is left out."""
    fields = {**vars(result), "meta": dict(result.meta)}
    rare = {n for n, v in fields.items() if (n in _RARE and not v) or (n in _PRUNED and v is None)}
    return {name: value for name, value in fields.items() if name not in rare}


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A passage with its score: a probability unless raw scores were asked for."""

    id: str
    score: float
    text: str
    title: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    offset: int = 0
    """Where `text` begins in its passage, when the passage was longer than the model."""
    first_stage: Mapping[str, Mapping[str, float]] | None = None
    """Its rank and score in each ranking of the first stage, where those were asked for."""
    link: str = ""
    """The address that opens its file, at its page; empty where the index knows no file."""
    pruned_text: str | None = None
    """The sentences of `text` that matter to the query, where pruning was asked for; may be empty."""
    kept: Spans | None = None
    """Where those stand in `text`, in characters."""
    sentences: tuple[tuple[int, int, float], ...] | None = None
    """Start and end of every sentence of `text`, and the probability that it matters."""
    highlight: tuple[int, int] | None = None
    """Where the sentence that matters most stands in `text`, if asked for."""

    @property
    def shown_text(self) -> str:
        """The pruned text, or the text where nothing was pruned."""
        return self.text if self.pruned_text is None else self.pruned_text

    @property
    def document(self) -> str:
        """The document that it was cut from, or its id."""
        return str(self.meta.get("document") or self.id)

    @property
    def place(self) -> tuple[int, int] | None:
        """Start and end of the hit in its document, in characters; None where the index does not know."""
        return _place(self.meta, self.offset, self.offset + len(self.text))

    def to_json(self) -> dict[str, object]:
        """The object that `search --json` prints for this hit."""
        return _shown(self)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A span of a passage: `passage[start:end]`."""

    passage_id: str
    passage: str
    start: int
    end: int
    score: float
    title: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    offset: int = 0
    """Where `passage` begins, when it is a window of a passage longer than the model."""
    link: str = ""
    """The address that opens its file, at its page; empty where the index knows no file."""
    pruned_text: str | None = None
    """The sentences of `passage` that matter to the question, where pruning was asked for."""
    kept: Spans | None = None
    sentences: tuple[tuple[int, int, float], ...] | None = None
    highlight: tuple[int, int] | None = None

    @property
    def document(self) -> str:
        """The document that the passage was cut from, or its id."""
        return str(self.meta.get("document") or self.passage_id)

    @property
    def place(self) -> tuple[int, int] | None:
        """Start and end of the span in its document, in characters; None where the index does not know."""
        return _place(self.meta, self.offset + self.start, self.offset + self.end)

    def to_json(self) -> dict[str, object]:
        """All fields; part of what `ask --json` prints."""
        return _shown(self)


@dataclass(frozen=True, kw_only=True)
class Answer(Evidence):
    """An answer: the text of a span, with `passage[start:end] == text`."""

    text: str
    evidence: tuple[Evidence, ...] = ()
    """Every place that says the same, best first; `score` is the sum of theirs."""

    def scaled(self, score: float) -> Answer:
        """The answer with another score, of which each piece of evidence keeps its share."""
        ratio = score / self.score if self.score else 0.0
        evidence = tuple(replace(place, score=place.score * ratio) for place in self.evidence)
        return replace(self, score=score, evidence=evidence)

    def to_json(self) -> dict[str, object]:
        """The object that `ask --json` prints for this answer."""
        return {**super().to_json(), "evidence": [place.to_json() for place in self.evidence]}


def _place(meta: Mapping[str, Any], start: int, end: int) -> tuple[int, int] | None:
    first = meta.get("start")
    return (first + start, first + end) if isinstance(first, int) else None


@dataclass(frozen=True, kw_only=True)
class Label:
    """The class of a pair, with the probability (or logit) of every class."""

    label: str
    score: float
    scores: Mapping[str, float]

    def to_json(self) -> dict[str, object]:
        """The object that `classify --json` prints for this pair."""
        return {**vars(self), "scores": dict(self.scores)}


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Where the milliseconds of one query went."""

    retrieve_ms: float = 0.0
    fetch_ms: float = 0.0
    encode_ms: float = 0.0
    cross_ms: float = 0.0
    total_ms: float = 0.0

    def to_json(self) -> dict[str, float]:
        """Milliseconds of each stage, rounded to a microsecond."""
        return {name: round(value, 3) for name, value in vars(self).items()}

    def __str__(self) -> str:
        *stages, _ = self.to_json().items()
        parts = ", ".join(f"{name[:-3]} {value:.1f}" for name, value in stages if value)
        return f"{self.total_ms:.1f} ms: {parts}"


T = TypeVar("T", Hit, Answer, Label)


@dataclass(frozen=True, kw_only=True)
class Results(Sequence[T]):
    """Hits, answers or labels, with the query and where its milliseconds went."""

    query: str
    items: tuple[T, ...]
    timing: Timing = Timing()
    tokens: int = 0
    """Tokens that were read: those of the query with each passage."""
    notes: tuple[str, ...] = ()
    """What the reader should know about the query: that the model does not read its language, say."""
    missing: tuple[int, ...] = ()
    """Shards of a cluster that did not answer in time, so that their passages are not among these."""

    @overload
    def __getitem__(self, i: int) -> T: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[T, ...]: ...
    def __getitem__(self, i: int | slice) -> T | tuple[T, ...]:
        return self.items[i]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def partial(self) -> bool:
        """Whether some shards did not answer, so that their passages were not looked at."""
        return bool(self.missing)

    def check_whole(self) -> None:
        """Raise where a shard did not answer: for those who must get a score for all that they gave."""
        if self.missing:
            numbers = ", ".join(map(str, self.missing))
            raise DecoupledError(
                f"shards {numbers} did not answer in time, so documents of this request have no score; "
                "try again, or serve with more replicas"
            )

    def _to_json(self, query: str, items: str) -> dict[str, object]:
        partial = {"partial": True, "missing_shards": list(self.missing)} if self.missing else {}
        listed = [item.to_json() for item in self]
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {
            query: self.query,
            items: listed,
            "timing": self.timing.to_json(),
            **notes,
            **partial,
        }


class Hits(Results[Hit]):
    """What `search` and `rerank` return."""

    def to_json(self) -> dict[str, object]:
        """The document that `search --json` prints."""
        return self._to_json("query", "hits")


@dataclass(frozen=True, kw_only=True)
class Answers(Results[Answer]):
    """What `ask` returns; empty when nothing answers the question well enough."""

    rejected: tuple[Answer, ...] = ()
    """The best guesses whose score is below the threshold, so that they are not among the answers."""

    weight: float = -math.inf
    """Logarithm of the weight of all spans that were weighed, by which shards of an index are compared."""

    @property
    def verdict(self) -> str:
        """What is said where there is no answer: the best guess, and how to see all of them."""
        if not self.rejected:
            return "no answer found"
        best = self.rejected[0]
        return (
            f"no answer found: the best guess is “{shorten(best.text, 80, placeholder=' …')}” at "
            f"{percent(best.score)}, which is too unlikely; a threshold of 0 shows such guesses"
        )

    def to_json(self) -> dict[str, object]:
        """The document that `ask --json` prints."""
        rejected = [answer.to_json() for answer in self.rejected]
        return {**self._to_json("question", "answers"), "rejected": rejected}


class Labels(Results[Label]):
    """The labels of given passages, in their order."""


R = TypeVar("R")


def with_links(result: R, origins: Origins | None, route: str = "") -> R:
    """Hits or answers, each with the address that opens its file; anything else as it is."""
    if origins is None or not isinstance(result, Hits | Answers):
        return result

    def linked(one: Any) -> Any:
        ident = one.id if isinstance(one, Hit) else one.passage_id
        link = origins.link(one.document, ident, one.meta.get("page"), route=route)
        evidence = {"evidence": tuple(map(linked, one.evidence))} if isinstance(one, Answer) else {}
        return replace(one, link=link, **evidence)

    if isinstance(result, Answers):
        result = replace(result, rejected=tuple(map(linked, result.rejected)))
    items: Any = tuple(map(linked, result.items))
    return replace(result, items=items)
