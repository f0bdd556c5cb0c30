"""Any file of records as numbered rows of named fields; what follows knows no file formats."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from decoupled.index.documents.items import DECODER, json_items
from decoupled.index.documents.problems import Problems, UnreadableError
from decoupled.index.documents.sources import File, Form
from decoupled.index.documents.streams import BLOCK, opened
from decoupled.index.documents.tables import table_rows

Fields = dict[str, Any]

# The first line of a table that comes without a name: words between delimiters, one of them well known.
_HEADER = re.compile(rb'"?\w+"?([,;|\t]"?\w+"?)+\s*')
_COLUMN = re.compile(rb"(?i)\b(text|contents?|passage|body|query|question|sentence1|premise)\b")


def read_rows(
    file: File, problems: Problems, on_bytes: Callable[[int], None] | None = None
) -> Iterator[tuple[int, Fields]]:
    """Number and fields of each row: the number of a line, or of an item in a JSON list."""
    number = 0
    try:
        with opened(file.path, on_bytes) as stream:
            file = replace(file, form=_true_form(file.form, stream))
            for number, fields in _rows(file, stream, problems):
                yield number, fields
    except UnreadableError as error:
        line = error.line or (number + 1 if number and file.form != "json" else None)
        problems.fail(replace(file, form="lines").problem(line, str(error)))


def decoded(raw: bytes) -> str:
    """The bytes of one line as text; `ValueError` names the first byte that is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte 0x{raw[error.start]:02x} at column {error.start + 1} is not UTF-8 text"
        ) from None


def _rows(
    file: File, stream: io.BufferedReader, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    match file.form:
        case "jsonl":
            return _json_lines(file, stream, problems)
        case "json":
            return _json_list(file, stream, problems)
        case "csv" | "tsv":
            return table_rows(file, stream, problems)
        case _:
            return _text_lines(file, stream, problems)


def _true_form(form: Form, stream: io.BufferedReader) -> Form:
    """What a stream or a `.json` really holds, seen from its first bytes."""
    if form not in ("stream", "json"):
        return form
    first = stream.peek(BLOCK).lstrip().partition(b"\n")[0]
    if form == "stream" and _HEADER.fullmatch(first) and _COLUMN.search(first):
        return "csv"
    if form == "stream" and not first.startswith(b"{"):
        return "json" if re.match(rb"\[\s*(\{|$)", first) else "lines"
    try:
        fields = json.loads(first)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):  # many .json files hold one object a line
        return "json" if "data" in fields else "jsonl"
    return "json" if form == "json" or re.match(rb'\{\s*"(data|version)"', first) else "jsonl"


def _json_lines(
    file: File, stream: io.BufferedReader, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    for number, raw in enumerate(stream, 1):
        try:
            fields = DECODER.decode(raw.decode())
        except (ValueError, RecursionError) as error:
            if raw.strip():
                problems.fail(file.problem(number, _why_not_json(raw, error)))
            continue
        if type(fields) is dict:
            yield number, fields
        else:
            problems.fail(file.problem(number, _not_object(fields)))


def _json_list(
    file: File, stream: io.BufferedReader, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    for number, fields in enumerate(json_items(stream), 1):
        if type(fields) is dict:
            yield number, fields
        else:
            problems.fail(file.problem(number, _not_object(fields)))


def _text_lines(
    file: File, stream: io.BufferedReader, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    for number, raw in enumerate(stream, 1):
        try:
            line = decoded(raw).strip()
        except ValueError as error:
            problems.fail(file.problem(number, str(error)))
            continue
        if line:
            yield number, {"text": line}


def _why_not_json(raw: bytes, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        try:
            decoded(raw)
        except ValueError as clear:
            return str(clear)
    if isinstance(error, json.JSONDecodeError):
        reason = error.msg.removesuffix(" at")
        return f"is not one JSON object on one line ({reason} at column {error.colno})"
    return f"holds a value that cannot be read ({error})"


def _not_object(value: object) -> str:
    shown = f"{value!r:.60}"
    return f"is the {type(value).__name__} {shown}; expected an object with fields"
