"""Office files: Word documents, spreadsheets, and the slides of OpenDocument."""

import io
import re
import zipfile
from collections.abc import Iterator
from xml.etree import ElementTree

from decoupled.index.documents.files import File, UnreadableError, needed
from decoupled.index.formats.archives import DAMAGED
from decoupled.index.formats.blocks import TextBlock, one_line
from decoupled.index.formats.streams import LARGEST, read_bytes

_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)


def docx_blocks(file: File, stream: io.BufferedReader) -> Iterator[TextBlock]:
    """The blocks of a Word document: paragraphs, headings by their style, tables as lines."""
    needed("docx", "python-docx")
    from docx import Document
    from docx.table import Table

    raw = _unbombed(stream, "docx file")
    try:
        content = list(Document(raw).iter_inner_content())
    except Exception as error:  # zipfile, lxml and the library raise all kinds
        raise UnreadableError(f"is not a whole docx file ({error})") from None
    for part in content:
        if isinstance(part, Table):
            rows = ([one_line(cell.text) for cell in row.cells] for row in part.rows)
            yield from _table(rows)
        elif text := one_line(part.text):
            style = (part.style.name or "") if part.style is not None else ""
            match = _HEADING.match(style)
            yield TextBlock(text, int(match[1]) + 1 if match else int(style == "Title"))


def sheet_blocks(file: File, stream: io.BufferedReader) -> Iterator[TextBlock]:
    """The sheets of a workbook (xlsx, xls, xlsb, ods), each a table under its name."""
    needed("python_calamine", "python-calamine")
    from python_calamine import CalamineWorkbook

    raw = (
        io.BytesIO(read_bytes(stream))
        if file.format.name == "xls"
        else _unbombed(stream, "workbook")
    )
    try:
        book = CalamineWorkbook.from_filelike(raw)
        for name in book.sheet_names:
            yield TextBlock(one_line(name) or "Sheet", 1)
            rows = book.get_sheet_by_name(name).to_python(skip_empty_area=True)
            yield from _table([_cell(cell) for cell in row] for row in rows)
    except Exception as error:
        raise UnreadableError(f"is not a whole workbook ({one_line(str(error))})") from None


def odp_blocks(file: File, stream: io.BufferedReader) -> Iterator[TextBlock]:
    """The slides of an OpenDocument presentation; the first line of a slide is its heading."""
    try:
        raw = zipfile.ZipFile(_unbombed(stream, "presentation")).read("content.xml")
        # Entities made of entities expand to gigabytes (the billion laughs attack).
        if b"<!ENTITY" in raw:
            raise UnreadableError("is no presentation: content.xml defines entities")
        content = ElementTree.fromstring(raw)
    except DAMAGED as error:
        raise UnreadableError(f"is not a whole presentation ({error})") from None
    except (KeyError, ElementTree.ParseError) as error:
        raise UnreadableError(f"is not a whole presentation (content.xml: {error})") from None
    for page in content.iterfind(".//{*}presentation/{*}page"):
        lines = filter(None, (one_line("".join(p.itertext())) for p in _paragraphs(page)))
        for number, line in enumerate(lines):
            yield TextBlock(line, level=int(number == 0))


def _paragraphs(page: ElementTree.Element) -> Iterator[ElementTree.Element]:
    return (element for element in page.iter() if element.tag.endswith(("}p", "}h")))


def _unbombed(stream: io.BufferedReader, kind: str) -> io.BytesIO:
    """The bytes of an office file, if they do not unpack to more than memory holds."""
    raw = io.BytesIO(read_bytes(stream))
    try:
        size = sum(info.file_size for info in zipfile.ZipFile(raw).infolist())
    except DAMAGED as error:
        raise UnreadableError(f"is not a whole {kind} ({error})") from None
    if size > LARGEST:
        raise UnreadableError(f"unpacks to more than {LARGEST >> 20} MB")
    raw.seek(0)
    return raw


def _cell(value: object) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return one_line(str(int(value) if whole else value))  # type: ignore[call-overload]


def _table(rows: Iterator[list[str]]) -> Iterator[TextBlock]:
    """A line for each row that is not empty, cells apart by bars."""
    lines = (" | ".join(row) for row in rows)
    if text := "\n".join(line for line in lines if line.strip(" |")):
        yield TextBlock(text, lines=True)
