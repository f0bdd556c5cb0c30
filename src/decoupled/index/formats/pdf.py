"""PDF: the text of its pages under the headings of its outline, without what every page repeats."""

import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from decoupled.index.documents.files import File, UnreadableError, needed
from decoupled.index.formats.blocks import TextBlock, one_line
from decoupled.index.formats.streams import seekable

_DIGITS = re.compile(r"\d+")
# Lines at the top and at the bottom of a page that may be running titles.
_EDGE = 2


def pdf_blocks(file: File, stream: io.BufferedReader) -> Iterator[TextBlock]:
    """The paragraphs of a PDF; lines of its outline are headings."""
    needed("pypdfium2")
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(seekable(file, stream))
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise UnreadableError("is encrypted; save it without a password") from None
        raise UnreadableError(f"is not a whole PDF file ({error})") from None
    try:
        headings = _outline(document)
        pages = [_lines(page) for page in document]
    except pypdfium2.PdfiumError as error:
        raise UnreadableError(f"is damaged ({error})") from None
    finally:
        document.close()
    repeated = _repeated(pages)
    for number, lines in enumerate(pages):
        own = [line for line in lines if _key(line) not in repeated]
        for block in _page(own, headings[number]):
            yield block._replace(page=number + 1)


def _outline(document: Any) -> dict[int, list[TextBlock]]:
    """The headings of each page, by the bookmarks that point at it."""
    headings: dict[int, list[TextBlock]] = defaultdict(list)
    for mark in document.get_toc():
        target, title = mark.get_dest(), one_line(mark.get_title() or "")
        page = target.get_index() if target is not None else None
        if page is not None and title:
            headings[page].append(TextBlock(title, mark.level + 1))
    return headings


def _lines(page: Any) -> list[str]:
    text = page.get_textpage().get_text_bounded()
    return [line.strip() for line in text.replace("\r", "").replace("\x02", "-").split("\n")]


def _key(line: str) -> str:
    # Page numbers differ: with any number as 0, running titles are the same on all pages.
    return _DIGITS.sub("0", line)


def _repeated(pages: list[list[str]]) -> set[str]:
    """Running titles and page numbers: what stands at the edge of many pages."""
    edges = Counter(
        key for page in pages for key in {_key(x) for x in (*page[:_EDGE], *page[-_EDGE:]) if x}
    )
    # More than three pages and 30 % of them: less may be a heading that returns.
    return {key for key, count in edges.items() if count > max(3, len(pages) * 0.3)}


def _page(lines: list[str], headings: list[TextBlock]) -> Iterator[TextBlock]:
    """The blocks of a page: a paragraph ends at a blank line, or where a sentence ends a short line."""
    by_text = {one_line(block.text).lower(): block for block in headings}
    yield from (b for key, b in by_text.items() if key not in {one_line(x).lower() for x in lines})
    width, held = max(map(len, lines), default=0), list[str]()
    for line in [*lines, ""]:
        heading = by_text.pop(one_line(line).lower(), None)
        ends = held and held[-1].endswith((".", ":", "?", "!")) and len(held[-1]) < 0.8 * width
        if held and (not line or heading or ends):
            yield TextBlock(_joined(held))
            held = []
        if heading is not None:
            yield heading
        elif line:
            held.append(line)


def _joined(lines: list[str]) -> str:
    """The lines as one text; words that were hyphenated at a line's end are joined."""
    text = "\n".join(lines)
    return one_line(re.sub(r"(\w)[-\xad]\n([a-z])", r"\1\2", text))
