"""Plain text and Markdown files: a file is a passage, and a book is several."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

from decoupled.index.documents.files import Fields, File, Problems, UnreadableError
from decoupled.index.documents.streams import decoded

DOCUMENT_CHARS = 1 << 15
"""A document of this length (ten pages) is one passage; a longer one is cut at blank lines."""

_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.*?)\s*#*\s*")
_UNDERLINE = re.compile(r"\s{0,3}=+\s*")


def documents(
    file: File, stream: io.BufferedReader, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    """One passage named after the file, or several named after the file and their first line."""
    markdown = file.name.lower().endswith((".md", ".markdown"))
    title = ""
    for line, text, whole in _pieces(stream):
        title = title or (heading(text) if markdown else "")
        if text.strip():
            name = file.name if whole else f"{file.name}:{line}"
            yield line, {"id": name, "title": title, "text": text}
        elif whole:
            problems.note(file.problem(None, "is empty; left out"))


def text_lines(
    file: File, stream: io.BufferedReader, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    """The lines of a file that has one text on each."""
    for number, raw in enumerate(stream, 1):
        try:
            line = decoded(raw).strip()
        except ValueError as error:
            problems.fail(file.problem(number, str(error)))
            continue
        if line:
            yield number, {"text": line}


def heading(markdown: str) -> str:
    """The first heading of a Markdown text, or nothing; code blocks have none."""
    before, code = "", False
    for line in markdown.splitlines():
        if _FENCE.match(line):
            code = not code
        elif not code:
            found = _HEADING.fullmatch(line)
            if found and found[1]:
                return found[1]
            if _UNDERLINE.fullmatch(line) and before:
                return before
        before = line.strip()
    return ""


def _pieces(stream: io.BufferedReader) -> Iterator[tuple[int, str, bool]]:
    """First line number and text of each piece, and whether it is the whole document."""
    held: list[str] = []
    first, chars, whole = 1, 0, True
    for number, raw in enumerate(stream, 1):
        try:
            line = decoded(raw)
        except ValueError as error:
            raise UnreadableError(str(error), number) from None
        if held and chars + len(line) > DOCUMENT_CHARS:
            whole = False
            cut = _cut(held)
            yield first, _text(held[:cut]), whole
            first += cut
            held = held[cut:]
            chars = sum(map(len, held))
        held.append(line)
        chars += len(line)
    yield first, _text(held), whole


def _cut(lines: list[str]) -> int:
    """How many lines go into the piece: up to the last blank line, or all when there is none."""
    blank = (i for i in range(len(lines) - 1, 0, -1) if not lines[i].strip())
    return next(blank, len(lines) - 1) + 1


def _text(lines: list[str]) -> str:
    return "".join(lines).replace("\r\n", "\n").strip()
