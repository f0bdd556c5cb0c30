"""Any file as numbered rows of named fields, and those as what a caller reads in them."""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from decoupled.index.documents.files import (
    ColumnError,
    Fields,
    File,
    OtherError,
    Problem,
    Problems,
    RowError,
    UnreadableError,
)
from decoupled.index.documents.readers import Readers
from decoupled.index.documents.sources import BY_NAME
from decoupled.index.formats.streams import BLOCK, OnBytes, opened, without_mark

T = TypeVar("T")

# Header of a table on standard input: words between delimiters, one a known column name.
_HEADER = re.compile(rb'"?\w+"?([,;|\t]"?\w+"?)+\s*')
_COLUMN = re.compile(rb"(?i)\b(text|contents?|passage|body|query|question|sentence1|premise)\b")


def read_rows(
    file: File, problems: Problems, on_bytes: OnBytes | None = None, readers: Readers | None = None
) -> Iterator[tuple[int, Fields]]:
    """Number and fields of each row: the number of a line, or of an item in a JSON list.

    `readers` are the processes that read what this one should not; without them it reads all by itself.
    """
    if file.rows is not None:
        yield from file.rows(file, problems)
        return
    number = 0
    try:
        if readers is not None and file.format.boxed:
            for number, fields in readers.items(file, problems, on_bytes):
                yield number, fields
            return
        with opened(file, on_bytes) as stream:
            if not file.format.binary:
                stream = without_mark(stream)
            file = replace(file, format=BY_NAME[_true_format(file.format.name, stream)])
            if (read := file.format.read) is None:
                raise UnreadableError(
                    f"is {file.format.name}; expected rows: jsonl, json, csv or tsv"
                )
            for number, fields in read(file, stream, problems):
                yield number, fields
    except UnreadableError as error:
        after = number + 1 if number and file.format.counts == "line" else None
        problem = Problem(path=file.shown, line=error.line or after, message=str(error))
        if isinstance(error, OtherError) and not file.named:
            problems.note(replace(problem, kind="other"))
        else:
            problems.fail(problem)


def parse_rows(
    file: File,
    rows: Iterable[tuple[int, Fields]],
    parse: Callable[[int, Fields], Iterator[T]],
    problems: Problems,
) -> Iterator[T]:
    """What `parse` finds in each row; where a table lacks a column, all of its rows do.

    Of folders, files whose first row has no text are of another kind, such as the settings of a program.
    """
    first = True
    for number, fields in rows:
        try:
            yield from parse(number, fields)
            first = False
        except RowError as error:
            if first and isinstance(error, ColumnError) and not file.named:
                other = file.problem(number, str(error))
                return problems.note(replace(other, kind="other"))
            first = False
            hopeless = file.format.table and isinstance(error, ColumnError)
            try:
                problems.fail(file.problem(1 if hopeless else number, str(error)))
            except UnreadableError as enough:
                problems.fail(file.problem(None, str(enough)))
                return
            if hopeless:
                return


def _true_format(name: str, stream: io.BufferedReader) -> str:
    """The format that a stream or a `.json` file really has, told by its first bytes."""
    if name not in ("stream", "json"):
        return name
    first = stream.peek(BLOCK).lstrip().partition(b"\n")[0]
    if name == "stream" and _HEADER.fullmatch(first) and _COLUMN.search(first):
        return "csv"
    if name == "stream" and not first.startswith(b"{"):
        return "json" if re.match(rb"\[\s*(\{|$)", first) else "lines"
    try:
        fields = json.loads(first)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):  # many .json files hold one object a line
        return "json" if "data" in fields else "jsonl"
    return "json" if name == "json" or re.match(rb'\{\s*"(data|version)"', first) else "jsonl"


# Fields, whoever named them -----------------------------------------------------------------------


def lowered(fields: Fields) -> Fields:
    """The same fields under trimmed, lower-case names."""
    return {name.strip().lower(): value for name, value in fields.items()}


def first_of(fields: Fields, names: tuple[str, ...]) -> object:
    """The value under the first of these names that is there and not null."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def word(name: str, value: object) -> str:
    """A string, or a number as one; empty for null. Raises `RowError` for anything else."""
    if type(value) is str:
        return value
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise RowError(f"{name} is {value!r:.60}; expected a string or a number")


def text_of(name: str, value: object) -> str:
    """The value, which must be a string. Raises `RowError`."""
    if not isinstance(value, str):
        raise RowError(f"the {name} is {value!r:.60}; expected a text")
    return value


def names_of(fields: Fields) -> str:
    """The names of a row's fields, for a message."""
    return (", ".join(map(str, fields)) or "nothing")[:200]
