"""One row of any usual layout as pairs of query and passage, with what is known about them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from decoupled.index.documents.fields import first_of, names_of, word
from decoupled.index.documents.problems import ColumnError, RowError
from decoupled.index.documents.rows import Fields

_ID = ("id", "_id", "pid", "pair_id", "index", "idx")
_QUERY_ID = ("qid", "query_id", "query-id")
_QUERY = (
    *("query", "question", "sentence1", "premise", "question1", "text1", "anchor"),
    "#1 string",  # MRPC
)
_PASSAGE = (
    *("passage", "context", "sentence2", "hypothesis", "question2", "text2", "sentence"),
    *("text", "contents", "content", "body", "document"),
    "#2 string",
)
_LABEL = ("label", "score", "relevance", "gold_label", "is_duplicate", "quality", "is_selected")
_GIVEN = (
    (re.compile(r"pos(itive)?s?(_\d+)?"), 1),
    (re.compile(r"neg(ative)?s?(_\d+)?"), 0),
    (re.compile(r"passages"), None),
)
_INTEGER = re.compile(r"[-+]?\d{1,18}")
_DECIMAL = re.compile(r"[-+]?\d*\.\d+(e[-+]?\d+)?", re.IGNORECASE)

LabelValue = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Span:
    """A known answer: `passage[start:start + len(text)] == text`."""

    text: str
    start: int


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A query and a passage; a row that names several passages gives as many pairs of one group."""

    query: str
    passage: str
    label: LabelValue = None
    """A class, a grade or a score; None where the data has none."""
    answers: tuple[Span, ...] = ()
    """Where the passage answers the query; empty when it does not, or when that is not asked."""
    title: str = ""
    id: str = ""
    group: str = ""
    """What the pairs of one query share: the query's id, or its text where the data names no id."""


def pairs_of(row: Fields, name: str, *, parse_labels: bool) -> Iterator[Pair]:
    """The pairs of a row with lower-case names; `name` is its id where it has none.

    `parse_labels` turns labels from a table's cells into the numbers they spell. Raises `RowError`.
    """
    query = first_of(row, _QUERY)
    given = [
        (key, label)
        for pattern, label in _GIVEN
        for key in row
        if pattern.fullmatch(key) and row[key] not in (None, "")
    ]
    if query is None or not (given or any(row.get(key) is not None for key in _PASSAGE)):
        raise ColumnError(
            "is no pair: expected query and passage, question and context, sentence1 and "
            "sentence2, premise and hypothesis, or query with positive, negative or passages; "
            f"found {names_of(row)}"
        )
    query = _text("query", query)
    name = word("id", first_of(row, _ID)) or name
    group = word("query id", first_of(row, _QUERY_ID)) or (name if "answers" in row else query)
    if not given:
        yield _pair(row, query, name, group, parse_labels=parse_labels)
        return
    number = 0
    for key, label in given:
        listed = row[key] if isinstance(row[key], list) else [row[key]]
        for item in listed:
            number += 1
            inner = item if isinstance(item, dict) else {"text": item}
            inner = {"label": label, **inner}
            yield _pair(inner, query, f"{name}:{number}", group, parse_labels=False)


def _pair(row: Fields, query: str, name: str, group: str, *, parse_labels: bool) -> Pair:
    passage = _text("passage", first_of(row, _PASSAGE))
    label = first_of(row, _LABEL)
    if label is None and isinstance(row.get("answer"), bool):  # BoolQ
        label = row["answer"]
    return Pair(
        query=query,
        passage=passage,
        label=_label(label, parse_labels),
        answers=tuple(_spans(row.get("answers"), passage)),
        title=word("title", row.get("title")),
        id=name,
        group=group,
    )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise RowError(f"the {name} is {value!r:.60}; expected a text")
    return value


def _label(value: object, parse: bool) -> LabelValue:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and parse:
        value = value.strip()
        if _INTEGER.fullmatch(value):
            return int(value)
        return float(value) if _DECIMAL.fullmatch(value) else value or None
    if isinstance(value, float) and not isfinite(value):
        raise RowError(f"the label is {value}; expected a finite number")
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise RowError(f"the label is {value!r:.60}; expected a word or a number")


def _spans(answers: object, passage: str) -> Iterator[Span]:
    """SQuAD's list of objects, or the object of lists that its Hugging Face rows have."""
    match answers:
        case None:
            found: list[tuple[object, object]] = []
        case {"text": list(texts), "answer_start": list(starts)} if len(texts) == len(starts):
            found = list(zip(texts, starts, strict=True))
        case list() if all(isinstance(a, dict) for a in answers):
            found = [(answer.get("text"), answer.get("answer_start")) for answer in answers]
        case _:
            raise RowError(
                f"answers is {answers!r:.80}; expected a list of objects with text and answer_start"
            )
    for text, start in found:
        if not (isinstance(text, str) and type(start) is int and start >= 0):
            raise RowError(
                f"an answer is {text!r:.60} at {start!r}; expected a text and its position"
            )
        if not passage.startswith(text, start):
            there = passage[start : start + len(text)]
            raise RowError(
                f"the answer {text!r:.60} is not at {start} of its passage, {there!r:.60} is"
            )
        yield Span(text=text, start=start)
