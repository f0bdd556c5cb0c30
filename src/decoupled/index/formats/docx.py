"""Word documents: paragraphs, headings by their style, tables as lines."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator

from decoupled.index.documents.files import File, UnreadableError, needed
from decoupled.index.formats.blocks import TextBlock, one_line
from decoupled.index.formats.streams import LARGEST, read_bytes

_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)


def docx_blocks(file: File, stream: io.BufferedReader) -> Iterator[TextBlock]:
    """The blocks of a Word document."""
    needed("docx", "python-docx")
    from docx import Document
    from docx.table import Table

    raw = io.BytesIO(read_bytes(stream))
    try:
        # Before it is parsed: the library unpacks all of it into memory.
        if sum(info.file_size for info in zipfile.ZipFile(raw).infolist()) > LARGEST:
            raise UnreadableError(f"unpacks to more than {LARGEST >> 20} MB")
        content = list(Document(raw).iter_inner_content())
    except UnreadableError:
        raise
    except Exception as error:  # zipfile, lxml and the library raise all kinds
        raise UnreadableError(f"is not a whole docx file ({error})") from None
    for part in content:
        if isinstance(part, Table):
            rows = (" | ".join(one_line(cell.text) for cell in row.cells) for row in part.rows)
            if text := "\n".join(row for row in rows if row.strip(" |")):
                yield TextBlock(text, lines=True)
        elif text := one_line(part.text):
            style = (part.style.name or "") if part.style is not None else ""
            match = _HEADING.match(style)
            yield TextBlock(text, int(match[1]) + 1 if match else int(style == "Title"))
