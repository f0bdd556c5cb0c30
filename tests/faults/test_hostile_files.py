"""Files that were made to harm: a build ends, names each of them, and indexes all others."""

from __future__ import annotations

import io
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import decoupled as dc
import hostile
from decoupled.index.documents import read_passages
from decoupled.index.documents.chunks import Chunker
from decoupled.index.documents.files import File, Problem, Problems, UnreadableError
from decoupled.index.documents.passages import starter_tokenizer
from decoupled.index.documents.sources import BY_NAME
from decoupled.index.formats.streams import in_memory, opened
from faults.figures import record

pytestmark = pytest.mark.faults

PIECES = {
    "markdown": "# |\n\n|- |> |`|```\n|*|**|[a](b)|![|<div|<!--|-->|</p>|\n|---\n|title: x\n|&amp;|\\|\t",
    "html": "<p>|</p>|<div>|<b>|<table><tr><td>|<!--|-->|<a href=x>|&#xD800;|<?xml |<pre>|<dl><dt>|<script>",
    "text": "a|.|\n|\n\n|===|---\n|\t|   |\f|\u2028|\x1c|é|中|\ufeff",
    "csv": 'text|,|"|""|\n|;|\t|a|\r|\x00|é',
    "json": '[|{|}|]|"text"|:|,|"a"|1e999|NaN|\\ud800|null| |\n|-|1',
    "jsonl": '{"text": "a"}|\n|{|"text"|:|"\\ud800"|}|NaN|[|]|1e400|true',
    "mail": "From: |a@b|\n|\n\n|Subject: |=?utf-8?q?=ff?=|Content-Type: |multipart/mixed; boundary=x|--x\n"
    "|text/html|charset=rot13|Date: |x",
    "mbox": "From a 1:11\n|From: a\n|\n|>From |Subject: x\n|text|\x80",
}
"""What texts of each format are made of, apart by bars."""
MUTATED, HOSTILE, GOOD = 1000, 60, 200


def pieces(name: str) -> st.SearchStrategy[bytes]:
    parts = [*(part for part in PIECES[name].split("|") if part), "|", "word ", "x"]
    return st.lists(st.sampled_from(parts), max_size=60).map(
        lambda chosen: "".join(chosen).encode("utf-8", "surrogatepass")
    )


@pytest.mark.parametrize("name", PIECES)
def test_a_reader_gives_passages_or_says_why_not(name: str) -> None:
    chunker = Chunker(starter_tokenizer())
    form = BY_NAME[name]

    @settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(pieces(name), st.binary(max_size=400)))
    def check(raw: bytes) -> None:
        began = time.process_time()
        file = File(path=None, shown="x", name="x", format=form, member=lambda: in_memory(raw))
        try:
            with opened(file) as stream:
                if form.blocks is not None:
                    list(chunker.document("x", form.blocks(file, stream)))
                elif form.read is not None:
                    list(form.read(file, stream, Problems("skip")))
        except UnreadableError as error:
            # An exception that no reader expected would be named by its class.
            assert "Error:" not in str(error), (raw, error)
        assert time.process_time() - began < 5

    check()


def originals() -> dict[str, bytes]:
    """A small whole file of each binary format."""
    out, table = io.BytesIO(), pa.table({"text": ["a river", "a town"] * 20, "n": list(range(40))})
    pa.parquet.write_table(table, out)
    arrow = io.BytesIO()
    with pa.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table)
    page = "<html><body><h1>A</h1><p>One page.</p></body></html>"
    return {
        "pdf": hostile.nested_forms(1),
        "docx": hostile.docx("<w:p><w:r><w:t>words</w:t></w:r></w:p>" * 9),
        "epub": hostile.repeated_epub(3),
        "parquet": out.getvalue(),
        "arrow": arrow.getvalue(),
        "zip": hostile.zipped({"a.html": page, "b.md": "# B\n\ntext"}),
        "html": (page * 9).encode(),
        "eml": b"From: a@b\nSubject: s\nContent-Type: text/html\n\n" + page.encode(),
    }


def mutated(raw: bytes, dice: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(changed))
        match dice.randrange(3):
            case 0:
                changed[at] = dice.randrange(256)
            case 1:
                del changed[at : at + dice.randint(1, 40)]
            case _:
                changed[at:at] = changed[at // 2 : at // 2 + dice.randint(1, 40)]
        changed = changed or bytearray(b"x")
    return bytes(changed)


def test_mutated_files_are_read_or_named(tmp_path: Path) -> None:
    dice, files = random.Random(7), originals()
    for number in range(MUTATED):
        ending = list(files)[number % len(files)]
        (tmp_path / f"{number:04}.{ending}").write_bytes(mutated(files[ending], dice))
    problems = []
    read = {
        passage.id[:4]
        for passage in read_passages(tmp_path, on_error="skip", report=problems.append)
    }
    named = {Path(problem.path.split(".zip")[0]).name[:4] for problem in problems}
    assert len(read | named) == MUTATED
    unexpected = Counter(p.message for p in problems if "cannot be started" in p.message)
    assert not unexpected
    record("mutated", files=MUTATED, read=len(read), named=len(named - read), crashed=0)


def test_hostile_files_beside_good_ones(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    makers = list(hostile.SKIPPED.items())
    for number in range(HOSTILE):
        name, make = makers[number % len(makers)]
        (corpus / f"{number * 3:03}-{name}").write_bytes(make())
    for number in range(GOOD):
        text = f"# River {number}\n\nThe river {number} runs past the town {number}."
        (corpus / f"{number:03}-good.md").write_text(text, encoding="utf-8")
    began = time.monotonic()
    built = dc.build_index([str(corpus)], tmp_path / "index")
    seconds = time.monotonic() - began
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    assert built.passages == GOOD and built.skipped == HOSTILE
    assert {Path(p.path).name for p in built.problems} == {
        path.name for path in corpus.iterdir() if "good" not in path.name
    }
    record(
        "hostile",
        hostile=HOSTILE,
        good=GOOD,
        indexed=built.passages,
        named=built.skipped,
        seconds=round(seconds, 1),
        own_mib=used[0].ru_maxrss >> 10,
        reader_mib=used[1].ru_maxrss >> 10,
    )


def test_no_document_brings_another_file_along(tmp_path: Path) -> None:
    pytest.importorskip("pypandoc")
    other = tmp_path / "other.txt"
    other.write_text(
        ".TH SECRET 1\n.SH NAME\nSECRET, which no passage may show\n", encoding="utf-8"
    )
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name, text in hostile.including(other).items():
        content = text if isinstance(text, bytes) else text.encode()
        (corpus / name).write_bytes(content)
        (corpus / f"near-{name}").write_bytes(content.replace(str(other).encode(), b"../other.txt"))
    problems: list[Problem] = []
    passages = list(read_passages(corpus, on_error="skip", report=problems.append))
    assert not [p for p in passages if "SECRET" in f"{p.title} {p.text}"]
    read = {p.id.partition("#")[0].rpartition("/")[2] for p in passages if "text" in p.text}
    assert read >= {
        "a.tex",
        "a.org",
        "a.1",
        "a.mdoc",
        "a.adoc",
        "a.rtf",
        "a.wiki",
        "a.ipynb",
        "a.odt",
    }
    named = {Path(p.path).name for p in problems}
    assert named >= {"b.1", "a.typ", "a.dbk"}


def test_documents_made_to_harm_pandoc(tmp_path: Path) -> None:
    pytest.importorskip("pypandoc")
    for name, make in hostile.PANDOC.items():
        content = make()
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "z.org").write_text("* Rivers\n\nThe river is long.\n", encoding="utf-8")
    problems: list[Problem] = []
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    passages = list(read_passages(tmp_path, on_error="skip", report=problems.append))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert [p.text for p in passages] == ["The river is long."]
    messages = {Path(p.path).name: p.message for p in problems}
    assert set(messages) == set(hostile.PANDOC)
    assert messages["quotes.ipynb"] == "takes too long to read for its size"
    assert messages["indents.1"] == "is nested too deeply"
    assert "out of memory" in messages["spaces.odt"]
    # Ten seconds for the one that would take minutes, few for all others together.
    assert used.ru_utime - began.ru_utime < 60
    record("pandoc", hostile=len(messages), named=len(messages), read=len(passages))


OLD_READER = """
import resource, sys, time
while time.process_time() < 4:
    pass
resource.setrlimit(resource.RLIMIT_CPU, (6, 60))
from decoupled.index.formats.pandoc import _parsed
try:
    _parsed("ipynb", sys.stdin.buffer.read())
except Exception as error:
    print(error, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime < 3.5)
"""


def test_pandoc_gets_the_time_of_its_file_from_a_reader_of_any_age() -> None:
    pytest.importorskip("pypandoc")
    raw = hostile.notebook("> " * 20_000 + "x").encode()
    run = subprocess.run(
        [sys.executable, "-c", OLD_READER], input=raw, capture_output=True, check=True
    )
    assert run.stdout.decode().strip() == "takes too long to read for its size True"
