"""Man pages, markup, office files, notebooks and programs, as they become passages."""

import gzip
import io
import json
import subprocess
import zipfile

import pytest

from corpora import put
from decoupled.errors import InputError
from decoupled.index.documents import read_passages

pypandoc = pytest.importorskip("pypandoc")

MAN = r""".TH TIDE 1 "2026" "tide 1.0"
.SH NAME
tide \- predict tides
.SH OPTIONS
.TP
\fB\-h\fR, \fB\-\-high\fR
Show high water only.
.TP
.B \-\-port NAME
Use the tables of a port.
"""
MDOC = """.Dd $Mdocdate$
.Dt EBB 8
.Os
.Sh NAME
.Nm ebb
.Nd empty a harbour
.Sh DESCRIPTION
The daemon waits for
.Fl f Ar file .
"""
ADOC = """= Harbours

include::nowhere.txt[]

Moorings
--------

Tie *two* ropes:

----
tie bow stern
----

NOTE: Never one.
"""
RST = """
=====
Locks
=====

.. toctree::
   one

See :ref:`the gate <gate>`, :func:`~os.path` and ``code`` with *emphasis*::

    x = 1

Upper ``pool``
==============

.. note::
   Never both.

After `a link <http://x>`_ text.
"""
ORG = "#+title: Logbook\n* First day\nWe /sailed/ at dawn.\n| wind | 4 |\n"
RTF = (
    r"{\rtf1\ansi{\fonttbl\f0 Times;}\f0 The \b pilot\b0  boards at noon.\par Rates are fixed.\par}"
)
TEX = r"""\documentclass{article}\title{Locks}\begin{document}\maketitle
\section{Filling}\label{f} It takes $t^2$ minutes\footnote{In summer.}.
\input{/etc/passwd}
\end{document}"""
NOTEBOOK = json.dumps(
    {
        "cells": [
            {"cell_type": "markdown", "metadata": {}, "source": "# Drift\n\nA buoy moves."},
            {
                "cell_type": "code",
                "metadata": {},
                "source": "speed = 3",
                "outputs": [],
                "execution_count": 1,
            },
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
)


def zipped(**files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def written(format, text="# Piers\n\nA pier is built on piles.\n"):
    """A file of this format that pandoc wrote."""
    command = [pypandoc.get_pandoc_path(), "-f", "markdown", "-t", format, "-o", "-"]
    return subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout


def odp():
    names = 'xmlns:office="o" xmlns:draw="d" xmlns:text="t"'
    page = "<draw:page><text:p>Tides</text:p><text:p>Twice <text:span>a day</text:span></text:p></draw:page>"
    body = f"<office:body><office:presentation>{page}</office:presentation></office:body>"
    return zipped(
        **{"content.xml": f"<office:document-content {names}>{body}</office:document-content>"}
    )


def xlsx():
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    related = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"

    def row(*cells):
        inside = "".join(f'<c t="inlineStr"><is><t>{cell}</t></is></c>' for cell in cells)
        return f"<row>{inside}</row>"

    def relation(kind, target):
        inside = f'<Relationship Id="a" Type="{related}/{kind}" Target="{target}"/>'
        return f'<Relationships xmlns="{package}/relationships">{inside}</Relationships>'

    rows = row("port", "depth") + row("Lund", "12")
    sheets = '<sheets><sheet name="Depths" sheetId="1" r:id="a"/></sheets>'
    files = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"/>',
        "_rels/.rels": relation("officeDocument", "xl/workbook.xml"),
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{related}">{sheets}</workbook>',
        "xl/_rels/workbook.xml.rels": relation("worksheet", "worksheets/sheet1.xml"),
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>',
    }
    return zipped(**files)


CASES = {
    "tide.1": (MAN, [("tide(1)", "tide - predict tides\n\nOPTIONS\n\n-h, --high\nShow high")]),
    "tide.3pm.gz": (gzip.compress(MAN.encode()), [("tide(1)", "--port NAME\nUse the tables")]),
    "ebb.8": (MDOC, [("ebb(8)", "-f file")]),
    "a.adoc": (
        ADOC,
        [("Harbours › Moorings", "Tie two ropes:\n\ntie bow stern\n\nNote\n\nNever one.")],
    ),
    "a.rst": (
        RST,
        [
            (
                "Locks",
                "See the gate, os.path and code with emphasis:\n\nx = 1\n\nUpper pool\n\nNote\n\nNever both.",
            )
        ],
    ),
    "a.epub": (written("epub"), [("Piers", "A pier is built on piles.")]),
    "a.org": (ORG, [("Logbook › First day", "We sailed at dawn.\n\nwind | 4")]),
    "a.rtf": (RTF, [("", "The pilot boards at noon.\n\nRates are fixed.")]),
    "a.tex": (TEX, [("Locks › Filling", "It takes t^2 minutes (In summer.).")]),
    "a.ipynb": (NOTEBOOK, [("Drift", "A buoy moves.\n\nspeed = 3")]),
    "a.odt": (written("odt"), [("Piers", "A pier is built on piles.")]),
    "a.pptx": (written("pptx"), [("Piers", "A pier is built on piles.")]),
    "a.odp": (odp(), [("Tides", "Twice a day")]),
    "a.xlsx": (xlsx(), [("Depths", "port | depth\nLund | 12")]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_document_becomes_passages_under_its_headings(tmp_path, name):
    content, expected = CASES[name]
    path = put(tmp_path, name, content)
    passages = list(read_passages(path.parent))
    assert [passage.title for passage in passages] == [title for title, _ in expected]
    for passage, (_, text) in zip(passages, expected, strict=True):
        assert text in passage.text
    whole = next(read_passages(path, chunk=None)).text
    assert all(whole[p.meta["start"] : p.meta["end"]] == p.text for p in passages)


@pytest.mark.parametrize("name", ["a.odt", "a.odp", "a.pptx", "a.epub", "a.xlsx", "a.xls", "a.ods"])
def test_a_damaged_file_costs_itself(tmp_path, name):
    put(tmp_path, name, b"PK\x03\x04 this is no archive")
    put(tmp_path, "b.txt", "text")
    problems = []
    assert len(list(read_passages(tmp_path, on_error="skip", report=problems.append))) == 1
    assert [problem.kind for problem in problems] == ["lost"]
    assert "is not" in problems[0].message


def test_a_rotated_log_is_no_man_page(tmp_path):
    put(tmp_path, "system.log.1", "Jan 1 started\n")
    put(tmp_path, "b.txt", "text")
    problems = []
    assert len(list(read_passages(tmp_path, report=problems.append))) == 1
    assert [problem.kind for problem in problems] == ["other"]
    assert "--as-text" in problems[0].message
    assert len(list(read_passages(tmp_path, as_text=["*.1"]))) == 2


PYTHON = '''# Copyright 2026 A. Person
"""Tides of a port."""

class Port:
    """A place with water."""

    def depth(self, hour):
        """Metres at an hour."""
        # Tables are in feet.
        return table[hour] * 0.3


# What ships need.
def clearance(): ...
'''


def test_comments_stand_under_the_functions_they_describe(tmp_path):
    c = (
        "/*\n * Tables.\n */\n#include <a.h>\n\n/** Sum of all.\n * Slow. */\n"
        "static int\nsum(int a)\n{\n  // add\n  return a;\n}\n"
    )
    put(tmp_path, "port.py", PYTHON)
    put(tmp_path, "sum.c", c)
    put(tmp_path, "ship.go", "package ship\n\n// Sail sets sail.\nfunc Sail(n int) {}\n")
    put(tmp_path, "rows.c", "// A row\n// of oars.\n\n/* Port. */\n/* Lee. */\n")
    texts = {p.meta["document"]: p.text for p in read_passages(tmp_path)}
    lines = "Tides of a port.", "Port", "A place with water.", "depth", "Metres at an hour."
    lines += "Tables are in feet.", "clearance", "What ships need."
    assert texts["port.py"] == "\n\n".join(lines)
    assert texts["sum.c"] == "Tables.\n\nsum\n\nSum of all.\nSlow.\n\nadd"
    assert texts["ship.go"].endswith("Sail sets sail.")
    assert texts["rows.c"] == "A row\nof oars.\n\nPort.\nLee."


def test_code_reads_every_line(tmp_path):
    path = put(tmp_path, "port.py", PYTHON)
    text = "\n".join(p.text for p in read_passages(path, code=True, chunk=None))
    assert "port.py\n\n# Copyright" in text
    assert "depth\n\n    def depth(self, hour):" in text
    assert "clearance\n\n# What ships need.\ndef clearance(): ..." in text


def test_rows_have_their_text_in_the_field_that_is_named(tmp_path):
    path = put(tmp_path, "a.jsonl", '{"id": "1", "Abstract": "tides", "text": "no"}\n')
    assert [p.text for p in read_passages(path, text_field="abstract")] == ["tides"]
    with pytest.raises(InputError, match="expected a field body, found id, Abstract, text"):
        list(read_passages(path, text_field="body"))
    other = put(tmp_path, "b.jsonl", '{"id": "1", "abstract": "tides"}\n')
    with pytest.raises(InputError, match="--text-field"):
        list(read_passages(other))


ODD = {
    # Asciidoctor's own README has such a condition, at which pandoc stops.
    "a.adoc": (
        "= Harbours\n\nifdef::env-x[]\ninclude::y.adoc[]\nendif::[]\n\n== Tides\n\nThey turn.\n",
        ["Harbours › Tides"],
        "They turn.",
    ),
    # Without a remedy pandoc goes round for ever.
    "a.rtf": (
        r"{\rtf1{\stylesheet{\s0\sbasedon0 Normal;}{\s1\fs9\sbasedon1 Own;}}\pard\s1 The tide.\par}",
        [""],
        "The tide.",
    ),
    "a.org": ("* TODO Moor the boat :harbour:\n\nWith ropes.\n", ["Moor the boat"], "With ropes."),
    "a.pod": (
        "=head1 NAME\n\ntide - predict tides\n\n=head1 USE\n\nEach day.\n",
        ["tide"],
        "Each day.",
    ),
    "a.wiki": ("[[File:x.png|The mole]]Behind it.\n", [""], "Behind it."),
}


@pytest.mark.parametrize("name", ODD)
def test_what_real_files_have_and_pandoc_does_not_take_as_meant(tmp_path, name):
    text, titles, words = ODD[name]
    passages = list(read_passages(put(tmp_path, name, text), chunk=20))
    assert [p.title for p in passages] == titles
    assert words in "\n\n".join(p.text for p in passages) + "\n\n"


def test_the_mark_of_a_chart_is_no_text():
    from decoupled.index.formats.pandoc import _blocks

    def paragraph(*words):
        return {"t": "Para", "c": [{"t": "Str", "c": word} for word in words]}

    chart = paragraph("[Graphic: other: http://schemas.openxmlformats.org/drawingml/2006/chart]")
    assert [b.text for b in _blocks([chart, paragraph("words")])] == ["words"]
