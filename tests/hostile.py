"""Small files made to stop whoever reads them: each takes minutes or gigabytes, or breaks a library."""

import io
import json
import zipfile
import zlib
from itertools import pairwise

_WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument.'
    'wordprocessingml.document.main+xml"/></Types>'
)
_RELATIONS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship '
    'Id="r" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
    'Target="word/document.xml"/></Relationships>'
)


def zipped(files):
    """A zip archive of these files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def docx(body):
    """A Word document of this XML."""
    document = f"<w:document {_WORD}><w:body>{body}</w:body></w:document>"
    return zipped(
        {
            "[Content_Types].xml": _TYPES,
            "_rels/.rels": _RELATIONS,
            "word/document.xml": document,
        }
    )


def table(properties, rows=1):
    """A Word table whose cells have these properties."""
    cell = f"<w:tc><w:tcPr>{properties}</w:tcPr><w:p><w:r><w:t>cell</w:t></w:r></w:p></w:tc>"
    return docx(f"<w:tbl>{f'<w:tr>{cell}</w:tr>' * rows}</w:tbl>")


def pdf(*objects):
    """A PDF of these objects, of which the first is the catalogue."""
    out = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n" % number + body + b"\nendobj\n"
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return bytes(out) + b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (
        len(objects) + 1,
        start,
    )


def stream(data, more=b""):
    """A stream object of a PDF."""
    return b"<</Length %d%s>>stream\n" % (len(data), more) + data + b"\nendstream"


def nested_forms(depth, width=10):
    """A PDF whose page draws a form ten times, which draws another ten times, and so on."""
    forms = []
    for level in range(depth):
        inner = b"/F Do " * width if level < depth - 1 else b"BT /T 9 Tf (deep) Tj ET"
        resources = b"/XObject<</F %d 0 R>>" % (6 + level) if level < depth - 1 else b""
        kind = (
            b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<<"
            + resources
            + b"/Font<</T 4 0 R>>>>"
        )
        forms.append(stream(inner, kind))
    return pdf(
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents %d 0 R"
        b"/Resources<</XObject<</F 5 0 R>>/Font<</T 4 0 R>>>>>>" % (5 + depth),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        *forms,
        stream(b"/F Do " * width),
    )


def flate_in_flate(megabytes=200):
    """A PDF whose page is zeros, compressed twice."""
    data = zlib.compress(zlib.compress(b" " * (megabytes << 20), 9), 9)
    return pdf(
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R/Resources<<>>>>",
        stream(data, b"/Filter[/FlateDecode/FlateDecode]"),
    )


def dictionary_parquet(rows=20_000, size=1 << 20):
    """A Parquet file that names one long text many times."""
    import pyarrow as pa
    import pyarrow.parquet

    column = pa.DictionaryArray.from_arrays(
        pa.array([0] * rows, pa.int32()), pa.array(["word " * (size // 5)])
    )
    out = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"text": column}), out, compression="zstd")
    return out.getvalue()


def repeated_epub(count=700_000):
    """A book that names its one page many times."""
    return zipped(
        {
            "META-INF/container.xml": '<c><rootfile full-path="b.opf"/></c>',
            "b.opf": '<p><manifest><item id="a" href="a.html" media-type="text/html"/></manifest><spine>'
            + '<itemref idref="a"/>' * count
            + "</spine></p>",
            "a.html": "<p>" + "One page of a book. " * 20 + "</p>",
        }
    )


SKIPPED = {
    "span-word.docx": lambda: table('<w:gridSpan w:val="x"/>'),
    "span-none.docx": lambda: table("<w:gridSpan/>"),
    "merge.docx": lambda: table('<w:vMerge w:val="continue"/>'),
    "style.docx": lambda: docx("<w:p><w:pPr><w:pStyle/></w:pPr><w:r><w:t>x</w:t></w:r></w:p>"),
    "forms.pdf": lambda: nested_forms(9),
    "span-many.docx": lambda: table('<w:gridSpan w:val="300000000"/>'),
    "dictionary.parquet": dictionary_parquet,
    "repeated.epub": repeated_epub,
}
"""Files that must be skipped, by name."""


def odt(body):
    """An OpenDocument text of this XML."""
    names = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "text", "table")
    )
    styles = "<office:styles/><office:automatic-styles/><office:master-styles/>"
    content = f"<office:body><office:text>{body}</office:text></office:body>"
    return zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": f"<office:document-content {names}>{content}</office:document-content>",
            "styles.xml": f"<office:document-styles {names}>{styles}</office:document-styles>",
        }
    )


def entities(root, body, other=""):
    """XML whose entities name each other ten times over, and one that names a file."""
    names = "abcdefghij"
    larger = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in pairwise(names))
    file = f'<!ENTITY file SYSTEM "file://{other}">'
    return f'<!DOCTYPE {root} [<!ENTITY a "lol">{larger}{file}]>{body}'


def notebook(text):
    """A notebook of one cell."""
    cell = {"cell_type": "markdown", "metadata": {}, "source": [text]}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def including(path):
    """Documents that ask their reader for another file, by name."""
    article = f"<article><para>text &file;</para><include href='{path}' parse='text'/></article>"
    return {
        "a.tex": rf"text \input{{{path}}} \include{{{path}}} \usepackage{{{path}}}",
        "a.org": f'text\n\n#+INCLUDE: "{path}"\n#+INCLUDE: "{path}" src c\n#+SETUPFILE: {path}\n',
        "a.1": f".TH TEXT 1\n.SH NAME\ntext\n.so {path}\n.mso {path}\n.sy cat {path}\n.psbb {path}\n",
        "b.1": f".so {path}\n",
        "a.mdoc": f".Dd June 1\n.Dt TEXT 1\n.Os\n.Sh NAME\ntext\n.so {path}\n",
        "a.adoc": f"text\n\ninclude::{path}[]\n\n  include::{path}[]\n\n:x: include\n\n{{x}}::{path}[]\n",
        "a.typ": f'= Text\n\n#read("{path}")\n#include "{path}"\n',
        "a.dbk": entities("article", article, path),
        "a.rtf": rf'{{\rtf1\ansi text {{\field{{\*\fldinst INCLUDETEXT "{path}"}}{{\fldrslt x}}}}}}',
        "a.wiki": f"text {{{{:{path}}}}} [[File:{path}]]",
        "a.ipynb": notebook(f"text ![]({path}) <object data='{path}'></object>"),
        "a.odt": odt(
            f'<text:p>text</text:p><text:section><text:section-source href="{path}"/></text:section>'
        ),
    }


PANDOC = {
    "spaces.odt": lambda: odt('<text:p>a<text:s text:c="2000000000"/>b</text:p>'),
    "unpacked.odt": lambda: odt(f"<text:p>{'a' * (100 << 20)}</text:p>"),
    "nested.odt": lambda: odt(
        "<text:list><text:list-item>" * 20_000 + "</text:list-item></text:list>" * 20_000
    ),
    "not.odt": lambda: docx("<w:p/>"),
    "not.pptx": lambda: docx("<w:p/>"),
    "entities.dbk": lambda: entities("article", "<article><para>&j;</para></article>").encode(),
    "entities.fb2": lambda: entities("FictionBook", "<FictionBook>&j;</FictionBook>").encode(),
    "braces.rtf": lambda: b"{\\rtf1 " + b"{" * 300_000 + b"x" + b"}" * 300_000 + b"}",
    "stars.org": lambda: b"\n".join(b"*" * n + b" a" for n in range(1, 1000)),
    "macros.tex": lambda: rb"\def\a{b\a}\a",
    "lists.tex": lambda: rb"\begin{itemize}\item " * 5000 + rb"\end{itemize}" * 5000,
    "indents.1": lambda: b".TH A 1\n" + b".RS\n" * 20_000 + b"x\n",
    "strings.1": lambda: (
        b".TH A 1\n.ds a xxxxxxxxxx\n"
        + b"".join(b".ds %c %s\n" % (98 + n, (b"\\*%c" % (97 + n)) * 10) for n in range(12))
        + b"\\*m\n"
    ),
    "loop.typ": lambda: b"#while true {}\n",
    "tables.wiki": lambda: b"{|\n|\n" * 2000,
    "quotes.ipynb": lambda: notebook("> " * 20_000 + "x"),
}
"""Files that take pandoc's time or memory, nest deeply, or are not what their names say."""
