"""HTML: the text of a page under its headings, without navigation, scripts and other boilerplate."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from decoupled.index.documents.files import File, OtherError, UnreadableError
from decoupled.index.formats.blocks import TextBlock, one_line, words
from decoupled.index.formats.encodings import read_text

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

_DROPPED = words(
    "script style noscript template nav aside footer button select option svg math iframe object canvas "
    "audio video dialog head title link meta input textarea"
)
_CHROME = words(
    "navheader navfooter navbar navigation nav menu sidebar sphinxsidebar related breadcrumb breadcrumbs toc "
    "toctree-wrapper headerlink footer pagination cookie-banner mobile-nav skip-link skiplink "
    "indextable modindextable wy-nav-side rst-footer-buttons md-sidebar md-header md-footer"
)
_TOPIC = words("contents topic")
_ROLES = words("navigation search banner contentinfo complementary menu menubar")
_BLOCKS = words(
    "p div section article main header body ul ol li dl dt dd blockquote figure figcaption details summary "
    "address hr center fieldset caption table tr td th tbody thead tfoot"
)
_HEADINGS = {f"h{n}": n for n in range(1, 7)}
# Signatures of functions are headings below h6.
_SIGNATURE = len(_HEADINGS) + 1
_SEPARATORS = " \t—–-|:·»>"
# Deeper than any page: what lies below is taken as plain text.
_DEPTH = 150
# A list of this many links or more, with this share of its text in them, is navigation.
_LINKS, _LINKED = 3, 0.7
# A page needs more links than that to be an index.
_PAGE_LINKS = 20
_SENTENCE = re.compile(r"(?:\w+\W{1,3}){6}\w+[.!?](?:\s|$)")
# XML may close a tag in itself; HTML takes `<title/>` for open, and the page for its title.
_XML = re.compile(r"\s*<\?xml\s|.{,1000}<html[^<>]*\sxmlns\s*=", re.DOTALL)
_CLOSED = re.compile(
    r"<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr)\b)"
    r"([a-zA-Z][\w:-]*)((?:\s[^<>]*)?)/>"
)
# The parser compares each attribute of a tag with all before it.
_LONG_TAG, _ATTRIBUTES = re.compile(r"<[a-zA-Z][^<>]{4096,}"), 1000


def html_blocks(file: File, stream: io.BufferedReader) -> Iterator[TextBlock]:
    """The blocks of a page; its title, less the first heading, stands above them."""
    # Here and not above: what trains models imports the readers where this library may be missing.
    from selectolax.lexbor import LexborHTMLParser

    text = read_text(stream, declared=_charset)
    if _XML.match(text):
        text = _CLOSED.sub(r"<\1\2></\1>", text)
    if any(match[0].count("=") > _ATTRIBUTES for match in _LONG_TAG.finditer(text)):
        raise UnreadableError(f"has a tag of more than {_ATTRIBUTES} attributes; no page has")
    tree = LexborHTMLParser(text)
    page = _Page()
    if tree.body is not None:
        # What holds more than half of the page's text is content, whatever its class says.
        page = _Page(len(tree.body.text()) // 2)
        content = tree.css_first("main, [role=main]") or tree.body
        page.read(content)
        _check_reads(content, page.blocks)
    title = tree.css_first("head > title")
    yield from _under_title(one_line(title.text()) if title is not None else "", page.blocks)


def _check_reads(content: LexborNode, blocks: list[TextBlock]) -> None:
    """Raise `OtherError` for an index or a list of references: a page of links without sentences."""
    links = content.css("a[href]")
    if len(links) < _PAGE_LINKS:
        return
    linked, total = sum(len(link.text()) for link in links), len(one_line(content.text()))
    prose = sum(len(b.text) for b in blocks if not b.level and _SENTENCE.search(b.text))
    # Beside an address stands the term that it explains, which may be as long.
    addresses = sum(link.text() == link.attributes.get("href") for link in links)
    if prose < linked / 4 and (linked > _LINKED * total or addresses > len(links) / 2):
        raise OtherError("is an index or a list of references: it has links and no sentences")


def _charset(head: bytes) -> str | None:
    """The encoding that a page says it has."""
    match = re.search(
        rb"""(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", head[:2048], re.IGNORECASE
    )
    return match[1].decode("ascii") if match else None


def _under_title(title: str, blocks: list[TextBlock]) -> Iterator[TextBlock]:
    """The blocks below the page's title, less what the title and the first heading both say."""
    first = next((block for block in blocks if block.level), None)
    if first is not None and title:
        size, same = len(first.text), first.text.casefold()
        if title.casefold() == same:
            blocks = [block for block in blocks if block is not first]
        elif title[:size].casefold() == same and _is_apart(title[size:]):
            title = title[size:].strip(_SEPARATORS)
        elif title[-size:].casefold() == same and _is_apart(title[-size - 1 :: -1]):
            title = title[:-size].strip(_SEPARATORS)
    if title and blocks:
        yield TextBlock(title, 1)
    yield from (block._replace(level=block.level + 1) if block.level else block for block in blocks)


def _is_apart(rest: str) -> bool:
    """Whether what stands beside a heading in a title is another name, and not the end of its phrase."""
    return rest.lstrip()[:1] in tuple(_SEPARATORS.split()[0])


class _Page:
    """Walks over a page and collects what a reader of it would read."""

    def __init__(self, most: int = 0) -> None:
        """A node of more than `most` characters is content, even if its class says navigation."""
        self.blocks: list[TextBlock] = []
        self._most = most
        self._words: list[str] = []
        self._term = ""
        """The term of a definition list, to be joined with the block that defines it."""

    def read(self, node: LexborNode, depth: int = 0, signatures: int = 0) -> None:
        """Collect the blocks below a node."""
        for child in node.iter(include_text=True):
            tag = child.tag or ""
            if tag == "-text":
                self._words.append(child.text_content or "")
            elif tag.startswith(("-", "!")) or _is_navigation(child, tag, self._most):
                continue
            elif tag in _HEADINGS:
                self._flush()
                self._add(_inline(child), level=_HEADINGS[tag])
            elif tag == "pre":
                self._flush()
                self._add(child.text().strip("\r\n").expandtabs().rstrip(), lines=True)
            # Tables around tables, listings or headings are layout, and are read as blocks.
            elif tag == "table" and not child.css_matches("table table, table pre, table h2"):
                self._flush()
                self._add(_table(child), lines=True)
            elif tag == "dt":
                self._flush()
                signatures = self._define(child, signatures)
            elif tag in _BLOCKS:
                self._flush()
                self._inside(child, depth, signatures + (tag == "dd"))
                self._flush()
            else:
                self._words.append("\n" if tag == "br" else "")
                self._inside(child, depth, signatures)
        if not depth:
            self._flush()

    def _inside(self, node: LexborNode, depth: int, signatures: int) -> None:
        if depth < _DEPTH:
            self.read(node, depth + 1, signatures)
        else:
            self._words.append(node.text())

    def _define(self, term: LexborNode, signatures: int) -> int:
        """The term of a definition: part of its text; the signature of a function is a heading, too."""
        text = _inline(term)
        names = [n.text() for n in term.css(".sig-prename, .sig-name")]
        if names:
            self._add("".join(names), level=_SIGNATURE + min(signatures, 3))
        if text != "".join(names):
            self._term = f"{self._term}\n{text}" if self._term else text
        return signatures

    def _flush(self) -> None:
        if self._words:
            text = one_line("".join(self._words))
            self._words.clear()
            if text:
                self._add(text)

    def _add(self, text: str, *, level: int = 0, lines: bool = False) -> None:
        if self._term and not level:
            text, self._term = f"{self._term}\n{text}", ""
        if text.strip():
            self.blocks.append(TextBlock(text.strip("\n") if lines else text, level, lines))


def _is_navigation(node: LexborNode, tag: str, most: int) -> bool:
    """Whether a node is navigation or controls and not content."""
    if tag in _DROPPED:
        return True
    attributes = node.attributes
    names = {*(attributes.get("class") or "").lower().split(), (attributes.get("id") or "").lower()}
    # Doxygen calls the text of a page its contents; docutils a topic with links.
    named = names & _CHROME or names >= _TOPIC or (attributes.get("role") or "") in _ROLES
    if tag == "form" or named or "hidden" in attributes:
        return len(node.text()) <= most or _is_links(node)
    if tag == "header":
        return node.css_first("h1, h2") is None
    return tag in ("ul", "ol", "table") and _is_links(node)


def _is_links(node: LexborNode) -> bool:
    """Whether a node is mostly links, as tables of contents and indexes are."""
    links = node.css("a[href]")
    if len(links) < _LINKS:
        return False
    return sum(len(link.text()) for link in links) > _LINKED * len(one_line(node.text()))


def _inline(node: LexborNode) -> str:
    """All text of a node on one line."""
    words: list[str] = []
    for child in node.traverse(include_text=True):
        if child.tag == "-text" and not _is_mark(child.parent):
            words.append(child.text_content or "")
        elif child.tag in _BLOCKS or child.tag == "br":
            words.append(" ")
    return one_line("".join(words))


def _is_mark(node: LexborNode | None) -> bool:
    """Whether a node is the sign beside a heading that links to it, such as ¶."""
    return node is not None and "headerlink" in (node.attributes.get("class") or "")


def _table(node: LexborNode) -> str:
    """A line for each row, cells apart by bars."""
    rows = []
    for row in node.css("tr"):
        cells = [_inline(cell) for cell in row.css("td, th")]
        if any(cells):
            rows.append(" | ".join(cells))
    caption = node.css_first("caption")
    return "\n".join([*([_inline(caption)] if caption is not None else []), *rows])
