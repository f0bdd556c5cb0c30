"""Books: pages in their order under their title, and archives that are none."""

import gzip
import io
import zipfile

import pytest

from corpora import put
from decoupled.errors import InputError
from decoupled.index.documents import read_passages
from decoupled.index.documents.files import File, UnreadableError
from decoupled.index.documents.sources import BY_NAME
from decoupled.index.formats.epub import epub_blocks
from decoupled.index.formats.streams import in_memory

CONTAINER = '<container xmlns="urn:c"><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>'
PACKAGE = """<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Of Rivers</dc:title></metadata>
<manifest><item id="b" href="b%20two.xhtml" media-type="application/xhtml+xml"/>
<item id="f" href="font.otf" media-type="font/otf"/>
<item id="a" href="text/a.xhtml" media-type="application/xhtml+xml"/></manifest>
<spine><itemref idref="a"/><itemref idref="f"/><itemref idref="b"/><itemref idref="none"/>
</spine></package>"""
PAGE = '<?xml version="1.0"?><html><head><title>{}</title></head><body><h1>{}</h1><p>{}</p></body></html>'
LOCKED = '<encryption><EncryptedData><CipherReference URI="{}"/></EncryptedData></encryption>'
FILES = {
    "META-INF/container.xml": CONTAINER,
    "OPS/book.opf": PACKAGE,
    "OPS/text/a.xhtml": PAGE.format("Of Rivers", "Springs", "They rise."),
    "OPS/b two.xhtml": PAGE.format("Of Rivers", "Mouths", "They end."),
}


def epub(**more):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**FILES, **more}.items():
            if content is not None:
                archive.writestr(name, content)
    return out.getvalue()


@pytest.mark.parametrize("name", ["a.epub", "a.epub.gz"])
def test_a_book_is_read_in_the_order_of_its_spine(tmp_path, name):
    font = {"META-INF/encryption.xml": LOCKED.format("OPS/font.otf")}
    raw = epub(**font)
    put(tmp_path, name, gzip.compress(raw) if name.endswith("gz") else raw)
    (found,) = read_passages(tmp_path, chunk=None)
    assert (found.id, found.title) == ("a.epub", "Of Rivers")
    assert found.text.split("\n\n") == ["Of Rivers", "Springs", "They rise.", "Mouths", "They end."]
    parts = list(read_passages(tmp_path, chunk=16))
    assert [p.meta["headings"] for p in parts] == [["Of Rivers"]]


def test_a_book_without_a_title_has_the_headings_of_its_pages(tmp_path):
    without = PACKAGE.replace("<dc:title>Of Rivers</dc:title>", "")
    page = PAGE.format("Springs", "Springs", "They rise.")
    raw = epub(**{"OPS/book.opf": without, "OPS/text/a.xhtml": page, "OPS/b two.xhtml": "<p>.</p>"})
    found = list(read_passages(put(tmp_path, "a.epub", raw)))
    assert found[0].title == "Springs"


def test_the_contents_of_a_book_do_not_cost_the_book(tmp_path):
    links = "".join(f"<p><a href='{n}'>Of the river number {n}</a></p>" for n in range(40))
    page = f"<html><head><title>Contents</title></head><body>{links}</body></html>"
    (found,) = read_passages(put(tmp_path, "a.epub", epub(**{"OPS/b two.xhtml": page})), chunk=None)
    assert found.text.split("\n\n") == ["Of Rivers", "Springs", "They rise."]


def test_the_pages_of_a_book_together_must_not_fill_the_memory(tmp_path, monkeypatch):
    pages = [len(FILES[name]) for name in ("OPS/text/a.xhtml", "OPS/b two.xhtml")]
    path = put(tmp_path, "a.epub", epub())
    file = File(path=path, shown="a", name="a", format=BY_NAME["epub"])
    monkeypatch.setattr("decoupled.index.formats.epub.LARGEST", sum(pages))
    assert len(list(epub_blocks(file, in_memory(b"")))) == 5
    monkeypatch.setattr("decoupled.index.formats.epub.LARGEST", sum(pages) - 1)
    with pytest.raises(UnreadableError, match="is larger than"):
        list(epub_blocks(file, in_memory(b"")))


BROKEN = {
    "no zip": (b"no zip at all", "is not a whole EPUB file"),
    "cut": (epub()[:-40], "is not a whole EPUB file"),
    "no container": (epub(**{"META-INF/container.xml": None}), "expected META-INF/container.xml"),
    "no root": (
        epub(**{"META-INF/container.xml": "<container/>"}),
        "expected full-path of a rootf",
    ),
    "no package": (epub(**{"OPS/book.opf": None}), "expected OPS/book.opf in it"),
    "no page": (epub(**{"OPS/b two.xhtml": None}), "expected OPS/b two.xhtml in it"),
    "no xml": (epub(**{"OPS/book.opf": "<package"}), r"whole EPUB file \(OPS/book.opf: unclosed"),
    "entities": (
        epub(**{"OPS/book.opf": '<!DOCTYPE p [<!ENTITY a "aa">]><p>&a;</p>'}),
        "OPS/book.opf defines entities",
    ),
    "locked": (
        epub(**{"META-INF/encryption.xml": LOCKED.format("OPS/b%20two.xhtml")}),
        "is locked to its reader; index a copy that is not",
    ),
    "bomb": (epub(**{"OPS/text/a.xhtml": b" " * (80 << 20)}), "unpacks to more than 250 times"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_whole_book_is_told(tmp_path, kind):
    raw, why = BROKEN[kind]
    with pytest.raises(InputError, match=why):
        list(read_passages(put(tmp_path, "a.epub", raw)))
