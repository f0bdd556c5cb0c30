"""Markdown: text under its headings, without markup."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from decoupled.index.documents.files import File
from decoupled.index.formats.blocks import TextBlock, one_line
from decoupled.index.formats.encodings import read_text

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_TITLE = re.compile(r"^title\s*[:=](.*)$", re.MULTILINE)
# Front matter: YAML between lines of ---, TOML between lines of +++.
_FRONT = re.compile(r"\A(---|\+\+\+)\n(.*?\n)\1\n", re.DOTALL)
_TAG = re.compile(r"</?[a-zA-Z][^>]*>")
_TAG_OR_COMMENT = re.compile(rf"<!--.*?-->|{_TAG.pattern}", re.DOTALL)


def markdown_blocks(file: File, stream: io.BufferedReader) -> Iterator[TextBlock]:
    """The blocks of a Markdown file; the title of its front matter stands above them."""
    text = read_text(stream).replace("\r\n", "\n")
    if front := _FRONT.match(text):
        if title := _TITLE.search(front[2]):
            yield TextBlock(_unquoted(title[1].strip()), 1)
        text = text[front.end() :]
    tokens = iter(_parser().parse(text))
    for token in tokens:
        match token.type:
            case "heading_open":
                if heading := _plain(next(tokens)):
                    yield TextBlock(heading, int(token.tag[1:]) + bool(front))
            case "table_open":
                yield TextBlock(_table(tokens), lines=True)
            case "inline" if paragraph := _plain(token):
                yield TextBlock(paragraph)
            case "fence" | "code_block" if token.content.strip():
                yield TextBlock(token.content.strip("\n"), lines=True)
            case "html_block" if html := one_line(_without_tags(token.content)):
                yield TextBlock(html)
            case _:
                pass


def _table(tokens: Iterator[Token]) -> str:
    """A line for each row, cells apart by bars."""
    rows: list[list[str]] = []
    for token in tokens:
        match token.type:
            case "tr_open":
                rows.append([])
            case "inline":
                rows[-1].append(_plain(token))
            case "table_close":
                break
    return "\n".join(" | ".join(row) for row in rows)


def _unquoted(text: str) -> str:
    text = text[text[:1] in ("'", '"') :]
    return text[:-1] if text.endswith(("'", '"')) else text


def _without_tags(html: str) -> str:
    """The text between tags, in linear time: no tag is looked for where its end is missing."""
    comments = html.rfind("-->") + 1 and html.rfind("-->") + len("-->")
    tags = max(comments, html.rfind(">") + 1)
    before = _TAG_OR_COMMENT.sub(" ", html[:comments])
    return before + _TAG.sub(" ", html[comments:tags]) + html[tags:]


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table")


def _plain(token: Token) -> str:
    """The text of an inline token, without emphasis, link targets and tags."""
    words = []
    for child in token.children or ():
        match child.type:
            case "text" | "code_inline" | "image":
                words.append(child.content)
            case "softbreak" | "hardbreak":
                words.append(" ")
            case _:
                pass
    return one_line("".join(words))
