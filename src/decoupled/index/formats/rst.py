"""reStructuredText: text under its headings, listings, and what directives hold that is meant to be read."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

from decoupled.index.documents.files import File
from decoupled.index.formats.blocks import TextBlock, words
from decoupled.index.formats.text import Headings, paragraphs

_DIRECTIVE = re.compile(r"\.\. (?:\|.*?\| )?([\w:.+-]+)::\s*(.*)")
_LISTINGS = words(
    "code code-block sourcecode parsed-literal literalinclude productionlist doctest math"
)
_UNREAD = words(
    "toctree image figure contents include raw index highlight currentmodule module meta sectionauthor "
    "codeauthor testsetup testcleanup sectnum default-role role automodule autoclass autofunction only "
    "tabularcolumns"
)
_OPTION = re.compile(r"\s*:[\w-]+:(\s.*)?")
# In order: literals, links with a target, roles, bold, italics, references. Each pattern looks no further
# than to the next mark of its kind, and a role is short, so that all are linear.
_INLINE = (
    (re.compile(r"``(.+?)``"), r"\1"),
    (re.compile(r"(?::[\w:+-]{1,80}:)?`~?([^`<]*[^`<\s])\s*<[^`>]*>`_{0,2}"), r"\1"),
    (re.compile(r"(?::[\w:+-]{1,80}:)?`[~!]?([^`]+)`_{0,2}"), r"\1"),
    (re.compile(r"\*\*(\S(?:(?!\*\*).)*)(?<=\S)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*])\*(\S(?:[^*]*?\S)?)\*(?![\w*])"), r"\1"),
    (re.compile(r"\b(\w+)_(?=[\s.,;:)]|$)"), r"\1"),
)


def rst_blocks(file: File, stream: io.BufferedReader) -> Iterator[TextBlock]:
    """The blocks of a reStructuredText file."""
    headings = Headings()
    listing = unread = None  # the indentation above which all is part of a listing, or not read
    for lines in paragraphs(stream):
        indent = len(lines[0]) - len(lines[0].lstrip())
        if unread is not None and indent > unread:
            continue
        unread = None
        if listing is not None and indent > listing:
            yield TextBlock(_dedented(lines), lines=True)
            continue
        listing = None
        heading, lines = headings.split(lines)
        if heading is not None:
            yield heading._replace(text=_plain(heading.text))
        if not lines:
            continue
        if lines[0].lstrip().startswith(".. "):
            name, body = _directive(lines)
            unread = indent if name is None else None
            listing = indent if name in _LISTINGS else None
            if body:
                yield TextBlock(_dedented(body) if listing is not None else _plain("\n".join(body)))
            continue
        text = "\n".join(line.strip() for line in lines)
        if text.endswith("::"):
            listing = indent
        # A paragraph that ends in `::` announces a listing, and reads as ending in one colon.
        text = _plain(text[:-1] if listing is not None else text)
        if text.strip(":"):
            yield TextBlock(text, lines=lines[0].lstrip().startswith((">>>", "+--", "==", "|")))


def _directive(lines: list[str]) -> tuple[str | None, list[str]]:
    """The name of a directive and the lines to read; no name where all of it is passed over."""
    match = _DIRECTIVE.match(lines[0].lstrip())
    if match is None:
        footnote = re.match(r"\.\. (\[.+?\] .*)", lines[0].lstrip())
        return ("footnote", [footnote[1], *lines[1:]]) if footnote else (None, [])
    name = match[1].split(":")[-1]
    if name in _UNREAD:
        return None, []
    body = [line for line in lines[1:] if not _OPTION.fullmatch(line)]
    first = [] if name in _LISTINGS else [match[2]] if match[2] else []
    return name, [*first, *body]


def _dedented(lines: list[str]) -> str:
    least = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(line[least:] for line in lines)


def _plain(text: str) -> str:
    text = "\n".join(line.strip() for line in text.splitlines())
    for pattern, plain in _INLINE:
        text = pattern.sub(plain, text)
    return text
