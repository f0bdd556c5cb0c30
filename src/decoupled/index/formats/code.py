"""Source code: its comments and docstrings under the names of their functions, or all of it."""

import io
import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from decoupled.index.documents.files import File
from decoupled.index.formats.blocks import TextBlock, words
from decoupled.index.formats.encodings import read_text

_ENDINGS = words(
    "py pyi c h cc cpp cxx hpp hh cs java js mjs ts tsx jsx go rs rb sh bash zsh pl pm lua sql swift kt "
    "scala r jl hs ml el lisp clj vim tcl f90 dart ex erl groovy ps1 proto"
)
SUFFIXES = tuple(f".{ending}" for ending in sorted(_ENDINGS))
"""The endings of programs."""
_DEFINES = words("func function fn def sub class struct interface trait enum type fun proc module")
# What opens a comment, leads each of its lines, and closes it, in any of these languages.
_LEAD = re.compile(
    r"^[ \t]*(?:[rRuU]?(?:\"\"\"|''')|/\*+!?|//+!?|\*+(?!/)|#+[!:|]?|--+|;+|%+|\"(?= )|\{-)?[ \t]?",
    re.MULTILINE,
)
_CLOSE = re.compile(r"[ \t]*(?:\*+/[ \t]*$|(?:\"\"\"|'''|-\}|\|#)\s*\Z)", re.MULTILINE)
_DIRECTIVES = words("Preproc PreprocFile Hashbang")
_DOCSTRING = re.compile(r"[rRuU]?(?:\"\"\"|''')")
_WORD = re.compile(r"[^\W\d_]{2}")
_LICENCE = re.compile(r"(?i)copyright|licen[sc]ed under|spdx-")
# Between a comment and the name that it describes lie at most two line ends, and no end of a statement.
_BEFORE = re.compile(r"[^\n;{}]*(?:\n[^\n;{}]+)?(?:\n[^\n;{}]*)?")


class _Definition(NamedTuple):
    """A function or class: its place in the text, its level as a heading, and its name."""

    start: int
    level: int
    name: str


def comment_blocks(file: File, stream: io.BufferedReader) -> Iterator[TextBlock]:
    """The comments and docstrings of a file, each under the function that it describes or stands in."""
    text = read_text(stream)
    definitions, comments = _parsed(file.name, text)
    yield TextBlock(PurePath(file.name).name, 1)
    shown: _Definition | None = None
    for (start, end), owner in zip(comments, _owners(text, definitions, comments), strict=True):
        comment = _plain(text[start:end])
        if not _WORD.search(comment) or (owner is None and _LICENCE.search(comment)):
            continue
        if owner is not None and owner is not shown:
            yield TextBlock(owner.name, owner.level)
            shown = owner
        yield TextBlock(comment)


def code_blocks(file: File, stream: io.BufferedReader) -> Iterator[TextBlock]:
    """All of a file, as listings under the names of its functions and classes."""
    text = read_text(stream)
    definitions, comments = _parsed(file.name, text)
    begins = {definition: text.rfind("\n", 0, definition.start) + 1 for definition in definitions}
    for (start, _), owner in zip(comments, _owners(text, definitions, comments), strict=True):
        if owner is not None:
            begins[owner] = min(begins[owner], text.rfind("\n", 0, start) + 1)
    yield TextBlock(PurePath(file.name).name, 1)
    ends = (*begins.values(), len(text))
    if lines := text[: ends[0]].strip("\n"):
        yield TextBlock(lines, lines=True)
    for definition, (start, end) in zip(begins, pairwise(ends), strict=True):
        yield TextBlock(definition.name, definition.level)
        if lines := text[start:end].strip("\n"):
            yield TextBlock(lines, lines=True)


def _parsed(name: str, text: str) -> tuple[list[_Definition], list[tuple[int, int]]]:
    """The definitions of a file, and where its comments stand; those on lines in a row are one."""
    from pygments.lexers import get_lexer_for_filename
    from pygments.token import Token

    definitions, comments, before = list[_Definition](), list[tuple[int, int]](), ""
    for start, kind, value in get_lexer_for_filename(name).get_tokens_unprocessed(text):
        documents = kind in Token.Literal.String.Doc
        if documents or (kind in Token.Comment and kind[-1] not in _DIRECTIVES):
            _extend(comments, text, start, start + len(value))
        elif kind in Token.Name:
            named = kind in Token.Name.Function or kind in Token.Name.Class
            if named or before in _DEFINES:
                indented = text[text.rfind("\n", 0, start) + 1 : start][:1].isspace()
                definitions.append(_Definition(start, 2 + indented, value.strip()))
        if value.strip():
            before = value.strip()
    return definitions, comments


def _extend(comments: list[tuple[int, int]], text: str, start: int, end: int) -> None:
    """Add a comment, to the one on the line before it if there is one."""
    if comments:
        first, last = comments[-1]
        lines, quoted = (
            text[last - 1 : start],
            [_DOCSTRING.match(text, at) for at in (first, start)],
        )
        if not lines[1:].strip() and lines.count("\n") <= 1 and not any(quoted):
            comments[-1] = (first, end)
            return
    comments.append((start, end))


def _owners(
    text: str, definitions: list[_Definition], comments: list[tuple[int, int]]
) -> Iterator[_Definition | None]:
    """The function or class that each comment describes, or stands in."""
    starts = [definition.start for definition in definitions]
    for start, end in comments:
        at = bisect_right(starts, start)
        leads = not text[text.rfind("\n", 0, start) + 1 : start].strip()
        gap = text[end : starts[at]] if at < len(starts) and starts[at] - end < 400 else None
        describes = leads and gap is not None and _BEFORE.fullmatch(gap) is not None
        if describes and not _DOCSTRING.match(text, start):
            yield definitions[at]
        else:
            yield definitions[at - 1] if at else None


def _plain(comment: str) -> str:
    """A comment without its marks; its lines stay where they are paragraphs or lists."""
    lines = (_LEAD.sub("", line, count=1).rstrip() for line in _CLOSE.sub("", comment).splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
