"""Rows of json and jsonl files: one line at a time, or one list as a whole."""

import io
import json
from collections.abc import Iterator

from decoupled.index.documents.files import Fields, File, OtherError, Problems, UnreadableError
from decoupled.index.formats.streams import decoded, lines_of, read_bytes

DECODER = json.JSONDecoder(parse_constant=lambda name: None if name == "NaN" else float(name))
"""Reads NaN, which is how pandas writes what is missing, as null."""
_EXPECTED = 'expected a list of objects, or {"data": [objects]} as in SQuAD'
# Bytes of a list, which takes ten times as much memory; a file of lines may have any length.
_LARGEST = 256 << 20


def json_lines(
    file: File, stream: io.BufferedReader, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    """The objects of a file that has one on each line."""
    for number, raw in enumerate(lines_of(stream), 1):
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


def json_list(
    file: File, stream: io.BufferedReader, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    """The objects of a file that is one list of them."""
    for number, fields in enumerate(json_items(stream), 1):
        if type(fields) is dict:
            yield number, fields
        else:
            problems.fail(file.problem(number, _not_object(fields)))


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
    return f"is the {type(value).__name__} {f'{value!r:.60}'}; expected an object with fields"


def json_items(stream: io.BufferedReader) -> list[object]:
    """The items of a top-level list, or of the list `data` in a top-level object."""
    raw = read_bytes(stream, _LARGEST)
    if not raw.strip():
        return []
    try:
        value = DECODER.decode(decoded(raw))
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")
        fault = "cut short" if cut else "not JSON"
        raise UnreadableError(f"is {fault} ({error.msg})", error.lineno) from None
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"holds a value that cannot be read ({error})") from None
    items = value.get("data") if isinstance(value, dict) else value
    if isinstance(items, list):
        return items
    shown = f"{value!r:.60}"
    if isinstance(value, dict):
        shown = f"an object with {', '.join(value) or 'no fields':.200}"
    raise OtherError(f"is {shown}; {_EXPECTED}")
