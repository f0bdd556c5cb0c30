"""EPUB: the pages of a book in the order of its spine, under its title."""

from __future__ import annotations

import io
import posixpath
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import unquote
from xml.etree import ElementTree

from decoupled.index.documents.files import File, OtherError, UnreadableError
from decoupled.index.formats.archives import DAMAGED, unzipped
from decoupled.index.formats.blocks import TextBlock, one_line
from decoupled.index.formats.html import html_blocks
from decoupled.index.formats.streams import LARGEST, in_memory, read_bytes, seekable

_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
# Bytes of an XML file that describes the book, at most.
_DESCRIPTION = 16 << 20
_PAGES = frozenset({"application/xhtml+xml", "text/html"})


def epub_blocks(file: File, stream: io.BufferedReader) -> Iterator[TextBlock]:
    """The blocks of a book; its title stands above those of its pages."""
    try:
        with zipfile.ZipFile(seekable(file, stream)) as book:
            described = _path(xml_member(book, _CONTAINER), "rootfile", "full-path")
            package = xml_member(book, described)
            title = one_line(next((e.text or "" for e in package.iterfind(".//{*}title")), ""))
            if title:
                yield TextBlock(title, 1)
            locked, left = _encrypted(book), LARGEST
            for page in _spine(package, posixpath.dirname(described)):
                if page in locked:
                    raise UnreadableError("is locked to its reader; index a copy that is not")
                raw = _member(book, page, left)
                left -= len(raw)
                with suppress(OtherError):  # a page of links, such as the contents
                    for block in html_blocks(file, in_memory(raw)):
                        # Many pages have the title of their book.
                        if block.level != 1 or block.text != title:
                            yield block._replace(level=block.level and block.level + bool(title))
    except DAMAGED as error:
        raise UnreadableError(f"is not a whole EPUB file ({error})") from None


def _spine(package: ElementTree.Element, folder: str) -> Iterator[str]:
    """The pages of a book in their order, as its archive names them."""
    items = {item.get("id"): item for item in package.iterfind(".//{*}item")}
    for place in package.iterfind(".//{*}itemref"):
        item = items.get(place.get("idref"))
        if item is not None and item.get("media-type") in _PAGES:
            yield posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))


def _encrypted(book: zipfile.ZipFile) -> set[str]:
    """Members that only some reader can decrypt; often these are nothing but fonts."""
    if _ENCRYPTION not in book.namelist():
        return set()
    return {
        unquote(e.get("URI", ""))
        for e in xml_member(book, _ENCRYPTION).iterfind(".//{*}CipherReference")
    }


def _path(element: ElementTree.Element, tag: str, name: str) -> str:
    """The attribute `name` of the first element `tag`; `UnreadableError` where there is none."""
    value = next((e.get(name) for e in element.iterfind(f".//{{*}}{tag}")), None)
    if not value:
        raise UnreadableError(f"is not a whole EPUB file; expected {name} of a {tag}")
    return value


def xml_member(book: zipfile.ZipFile, name: str, kind: str = "EPUB file") -> ElementTree.Element:
    """An XML file of an archive; raises `UnreadableError`."""
    raw = _member(book, name, _DESCRIPTION)
    # Entities made of entities expand to gigabytes (the billion laughs attack).
    if b"<!ENTITY" in raw:
        raise UnreadableError(f"is no {kind}: {name} defines entities")
    try:
        return ElementTree.fromstring(raw)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise UnreadableError(f"is not a whole {kind} ({name}: {error})") from None


def _member(book: zipfile.ZipFile, name: str, most: int) -> bytes:
    """The bytes of a member; one that unpacks to more than `most` bytes is an `UnreadableError`."""
    try:
        info = book.getinfo(name)
    except KeyError:
        raise UnreadableError(f"is not a whole EPUB file; expected {name} in it") from None
    return read_bytes(unzipped(book, info), most)
