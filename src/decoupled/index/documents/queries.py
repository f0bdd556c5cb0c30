"""Queries, and judgments of which passages answer them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from decoupled.index.documents.files import (
    ColumnError,
    Fields,
    File,
    OnError,
    Problems,
    Report,
    RowError,
)
from decoupled.index.documents.layouts import read_flat_rows
from decoupled.index.documents.rows import first_of, lowered, names_of, parse_rows, read_rows, word
from decoupled.index.documents.sources import BY_NAME, Source, single_file

_ID = ("id", "_id", "qid", "query_id", "query-id")
_TEXT = ("text", "query", "question")


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query with the id that judgments call it by."""

    id: str
    text: str


def read_queries(
    source: Source, *, on_error: OnError = "stop", report: Report | None = None
) -> Iterator[Query]:
    """The queries of a jsonl, json, csv or tsv file, of SQuAD, or of a txt file with one a line."""
    return queries_of(single_file(source), Problems(on_error, report))


def queries_of(file: File, problems: Problems) -> Iterator[Query]:
    """The queries of a file, its problems sent where the caller says."""
    if file.format.name == "document":
        file = replace(file, format=BY_NAME["lines"])

    def parse(number: int, fields: Fields) -> Iterator[Query]:
        yield _query(lowered(fields), f"{file.name}:{number}")

    yield from parse_rows(file, read_flat_rows(file, problems), parse, problems)


def _query(row: Fields, name: str) -> Query:
    text = first_of(row, _TEXT)
    if text is None:
        expected = " or ".join(_TEXT)
        raise ColumnError(f"has no query: expected a field {expected}, found {names_of(row)}")
    if not isinstance(text, str) or not text.strip():
        raise RowError(f"the query is {text!r:.60}; expected a text")
    return Query(id=word("id", first_of(row, _ID)) or name, text=text)


def read_qrels(source: Source) -> dict[str, dict[str, int]]:
    """Grades by query id and passage id, from BEIR's three columns or TREC's four."""
    file = replace(single_file(source), format=BY_NAME["lines"])
    problems = Problems("stop")
    qrels: dict[str, dict[str, int]] = {}
    header = True
    for number, fields in read_rows(file, problems):
        line: str = fields["text"]
        cells = line.split("\t") if "\t" in line else line.split()
        grade = _grade(cells[-1])
        if len(cells) not in (3, 4) or (grade is None and not header):
            message = (
                f"is {line!r:.80}; expected query-id, corpus-id, score, or TREC's four columns"
            )
            problems.fail(file.problem(number, message))
        elif grade is not None:
            qrels.setdefault(cells[0], {})[cells[-2]] = grade
        header = False
    return qrels


def _grade(cell: str) -> int | None:
    try:
        return round(float(cell))
    except (ValueError, OverflowError):
        return None
