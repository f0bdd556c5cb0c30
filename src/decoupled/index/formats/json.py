"""Rows of json and jsonl files, one at a time: memory holds the longest item, not the file."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator

from decoupled.index.documents.files import Fields, File, OtherError, Problems, UnreadableError
from decoupled.index.formats.streams import BLOCK, LARGEST, decoded, lines_of

DECODER = json.JSONDecoder(parse_constant=lambda name: None if name == "NaN" else float(name))
"""Reads NaN, which is how pandas writes what is missing, as null."""
_SPACE = re.compile(r"[ \t\r\n]*")
_EXPECTED = 'expected a list of objects, or {"data": [objects]} as in SQuAD'

# The longest thing that the end of a buffer can cut so that the decoder blames its start.
_LONGEST_ATOM = len("\\ud83d\\ude00")


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


def json_items(stream: io.BufferedReader) -> Iterator[object]:
    """The items of a top-level list, or of the list `data` in a top-level object."""
    text = _Cursor(stream)
    first = text.next()
    if first == "{":
        _enter_data(text)
    elif first not in ("[", ""):
        raise text.error(f"begins with {first!r}; {_EXPECTED}", OtherError)
    if not first:
        return
    text.take("[")
    if text.next() == "]":
        return
    while True:
        yield text.value()
        if text.next() == "]":
            return
        text.take(",")


def _enter_data(text: _Cursor) -> None:
    """Move to the list under `data`, past the fields before it."""
    text.take("{")
    names = []
    while text.next() == '"':
        names.append(text.value())
        text.take(":")
        if names[-1] == "data" and text.next() == "[":
            return
        text.value()
        if text.next() != ",":
            break
        text.take(",")
    shown = ", ".join(map(str, names)) or "no fields"
    raise text.error(f"is an object with {shown}; {_EXPECTED}", OtherError)


class _Cursor:
    """A place in a JSON text of which only the part being parsed is in memory."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        self._buffer = ""
        self._at = 0
        self._line = 1
        self._ended = False

    def next(self) -> str:
        """The next character that is not space, not taken yet; empty at the end."""
        while True:
            match = _SPACE.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if self._ended:
                return ""
            self._more()

    def take(self, delimiter: str) -> None:
        """Step over a delimiter that must be there."""
        character = self.next()
        if character != delimiter:
            raise self.error(
                f"is not JSON: expected {delimiter!r}, found {character!r}"
                if character
                else f"is cut short: expected {delimiter!r} before the end of the file"
            )
        self._at += 1

    def value(self) -> object:
        """Parse the value that begins here, reading on until it is complete."""
        self.next()
        while True:
            try:
                value, end = DECODER.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                if self._ended or not self._cut(error):
                    whole = error.pos < len(self._buffer) and not _unterminated(error)
                    self._at = error.pos
                    fault = "not JSON" if whole else "cut short"
                    raise self.error(f"is {fault} ({error.msg})") from None
            except (ValueError, RecursionError) as error:
                raise self.error(f"holds a value that cannot be read ({error})") from None
            else:
                # A number may go on: of 1.5e+9 the buffer may hold 1.5e+, and 1.5 would be read.
                if self._ended or end + len("e+") < len(self._buffer):
                    self._at = end
                    return value
            self._more()

    def error(self, message: str, kind: type[UnreadableError] = UnreadableError) -> UnreadableError:
        """An error with this message and the number of the present line."""
        return kind(message, self._line + self._buffer.count("\n", 0, self._at))

    def _cut(self, error: json.JSONDecodeError) -> bool:
        """Whether the decoder fails only because the buffer ends in the middle of a value."""
        near_end = error.pos >= len(self._buffer) - _LONGEST_ATOM
        return near_end or _unterminated(error)

    def _more(self) -> None:
        # Reading as much again as is held keeps the repeated parsing of a long item linear.
        count = max(BLOCK, len(self._buffer) - self._at)
        if count > LARGEST // 4:
            raise self.error(f"holds an item of more than {LARGEST >> 22} million characters")
        try:
            chunk = self._text.read(count)
        except UnicodeDecodeError as error:
            raise self.error(
                f"byte 0x{error.object[error.start]:02x} after this line is not UTF-8"
            ) from None
        self._line += self._buffer.count("\n", 0, self._at)
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0
        self._ended = not chunk


def _unterminated(error: json.JSONDecodeError) -> bool:
    return error.msg.startswith("Unterminated string")
