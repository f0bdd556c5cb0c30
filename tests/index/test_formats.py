"""Files that need a library, archives, and twenty ways in which a corpus can be broken."""

import gzip
import io
import json
import os
import tarfile
import zipfile

import pyarrow as pa
import pyarrow.parquet
import pytest

from corpora import LINES, PASSAGES, ROWS, put
from decoupled.errors import InputError
from decoupled.index.documents import list_files, read_passages, readers, total_bytes
from decoupled.index.documents.files import Problems
from decoupled.index.formats import streams

zstd = pytest.importorskip("backports.zstd")


def pdf(text="Rivers run past towns.", encrypted=b"", marks=()):
    """The smallest PDF that says something; `marks` are bookmarks of its page."""
    content = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R /Outlines 6 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /First 7 0 R /Last %d 0 R >>" % (6 + len(marks)) if marks else b"<< >>",
    ]
    for number, (title, place) in enumerate(marks, 7):
        after = b" /Next %d 0 R" % (number + 1) if number < 6 + len(marks) else b""
        objects.append(b"<< /Title (%s) /Parent 6 0 R %s%s >>" % (title, place, after))
    out, places = io.BytesIO(b"%PDF-1.4\n"), []
    out.seek(0, io.SEEK_END)
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.writelines(b"%010d 00000 n \n" % place for place in places)
    out.write(
        b"trailer\n<< /Size %d /Root 1 0 R %s>>\nstartxref\n%d\n%%%%EOF"
        % (len(objects) + 1, encrypted, start)
    )
    return out.getvalue()


ENCRYPTED = (
    b"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <"
    + b"41" * 32
    + b"> /U <"
    + b"42" * 32
    + b"> >> "
    b"/ID [<00112233445566778899aabbccddeeff> <00112233445566778899aabbccddeeff>] "
)


def docx():
    Document = pytest.importorskip("docx").Document
    document, out = Document(), io.BytesIO()
    document.add_heading("Manual", 0)
    document.add_heading("Use", 1)
    document.add_paragraph("Press the button.")
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "key", "value"
    document.save(out)
    return out.getvalue()


def parquet(rows):
    out = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def arrow(rows, stream):
    out, table = io.BytesIO(), pa.Table.from_pylist(rows)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def zipped(**files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "."), content)
    return out.getvalue()


def tarred(*files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("a.parquet", parquet(ROWS)),
        ("a.parquet.gz", gzip.compress(parquet(ROWS))),
        ("a.arrow", arrow(ROWS, stream=True)),
        ("a.feather", arrow(ROWS, stream=False)),
        ("a.zip", zipped(sub__jsonl=LINES)),
        ("a.tar", tarred(("sub.jsonl", LINES.encode()))),
        ("a.tar.gz", gzip.compress(tarred(("sub.jsonl.gz", gzip.compress(LINES.encode()))))),
        ("a.tar.zst", zstd.compress(tarred(("deep/er/sub.jsonl", LINES.encode())))),
        ("a.zip", zipped(sub__parquet=parquet(ROWS))),
    ],
)
def test_rows_in_every_wrapping(tmp_path, name, raw):
    counts = []
    path = put(tmp_path, name, raw)
    assert list(read_passages(path, on_bytes=counts.append)) == PASSAGES
    assert sum(counts) == total_bytes(list_files([path], Problems("skip")))


def test_a_folder_that_datasets_saved(tmp_path):
    put(tmp_path, "d/train/data-00000-of-00001.arrow", arrow(ROWS, stream=True))
    put(tmp_path, "d/train/state.json", "{}")
    put(tmp_path, "d/train/dataset_info.json", "{}")
    put(tmp_path, "d/dataset_dict.json", '{"splits": ["train"]}')
    problems = []
    assert list(read_passages(tmp_path / "d", on_error="skip", report=problems.append)) == PASSAGES
    # Elsewhere a file of that name is one as any other.
    put(tmp_path, "e/dataset_info.json", '[{"id": "x", "text": "A river."}]')
    put(tmp_path, "e/notes.jsonl", '{"id": "y", "text": "A town."}')
    assert {passage.id for passage in read_passages(tmp_path / "e")} == {"x", "y"}


def test_pdf_and_docx(tmp_path):
    pytest.importorskip("pypdfium2")
    (page,) = read_passages(put(tmp_path, "a.pdf", pdf()))
    assert (page.id, page.text) == ("a.pdf", "Rivers run past towns.")
    marks = [(b"Waters", b"/Dest [3 0 R /Fit]"), (b"", b"/Dest [3 0 R /Fit]"), (b"Nowhere", b"")]
    (page,) = read_passages(put(tmp_path, "b.pdf", pdf(marks=marks)))
    assert (page.title, page.text, page.meta["page"]) == ("Waters", "Rivers run past towns.", 1)
    (word,) = read_passages(put(tmp_path, "a.docx", docx()))
    assert (word.title, word.text) == ("Manual › Use", "Press the button.\n\nkey | value")


def test_files_of_an_archive_are_named_after_both(tmp_path):
    path = put(tmp_path, "docs.zip", zipped(a__md="# A\n\nx", b__png="no", c__txt="y"))
    problems = []
    found = list(read_passages(path, report=problems.append))
    assert [(p.id, p.text) for p in found] == [("docs.zip/a.md", "x"), ("docs.zip/c.txt", "y")]
    assert [(p.path, p.kind) for p in problems] == [(f"{path}/b.png", "other")]


def test_a_missing_library_costs_its_files_and_says_what_to_install(tmp_path, monkeypatch):
    put(tmp_path, "a.org", "* A\n\nb\n")
    put(tmp_path, "b.txt", "text")
    # The process that reads runs this before the reader looks for its library.
    without = "import importlib.util as u; u.find_spec = lambda name: None; "
    monkeypatch.setattr(readers, "_START", without + readers._START)
    problems = []
    assert len(list(read_passages(tmp_path, on_error="skip", report=problems.append))) == 1
    assert 'run: pip install "decoupled-transformer[documents]"' in str(problems[0])


# Broken -------------------------------------------------------------------------------------------


def bomb(megabytes):
    """Much out of little."""
    packer = zstd.ZstdCompressor(level=19)
    return b"".join(
        [*(packer.compress((b" " * 8191 + b"\n") * 128) for _ in range(megabytes)), packer.flush()]
    )


BROKEN = {
    "cut.pdf": (pdf()[:200], "is not a whole PDF"),
    "encrypted.pdf": (pdf(encrypted=ENCRYPTED), "is encrypted"),
    "binary.html": (bytes(range(256)) * 40, "binary"),
    "half.html.gz": (
        gzip.compress(b"<p>" + os.urandom(9000).hex().encode())[:4000],
        "ends too early",
    ),
    "bomb.zip": (zipped(a__txt=(b" " * 8191 + b"\n") * (80 << 7)), "unpacks to more than"),
    "bomb.jsonl.zst": (bomb(90), "unpacks to more than"),
    "line.jsonl.gz": (gzip.compress(b"x" * (2 << 20)), "line is longer than"),
    "dots.tar": (tarred(("../../etc/x.txt", b"no")), "points out of its archive"),
    "cut.tar": (tarred(("a.txt", b"x" * 4000))[:700], "damaged"),
    "nested.zip": (zipped(inner__zip=zipped(a__txt="x")), "archive in an archive"),
    "not.zip": (b"PK\x03\x04 nothing", "zip archive is damaged"),
    "not.docx": (b"no zip at all", "is not a whole docx file"),
    "cut.parquet": (parquet(ROWS)[:-20], "is not a whole Parquet file"),
    "cut.arrow": (arrow(ROWS, stream=False)[:100], "is not a whole Arrow file"),
    "bad.jsonl": (b'{"text": "fine"}\n{broken\n', "is not one JSON object"),
    "odd.csv": (b"text,b\n1,2,3\n", "has 3 fields"),
    "cut.json": (b'[{"text": "x"}, {"te', "cut short"),
    "noise.txt.xz": (b"\xfd7zXZ\0" + b"noise" * 9, "damaged"),
    "table.tsv": (b"text\tn\nonly one\n", "has 1 field"),
    "wide.jsonl": (b"\xff\xfe" + '{"text": "x"}'.encode("utf-16-le"), "is UTF-16"),
}


def test_twenty_broken_files_are_a_line_each_and_everything_else_is_read(tmp_path, monkeypatch):
    pytest.importorskip("pypdfium2")
    monkeypatch.setattr(streams, "LINE", 1 << 20)
    for name, (raw, _) in BROKEN.items():
        put(tmp_path, name, raw)
    put(tmp_path, "empty.md", "")
    put(tmp_path, "good.txt", "good")
    odd = os.fsencode(tmp_path) + b"/\xff\xfe.txt"
    with open(odd, "wb") as out:  # noqa: PTH123 (a name that is not UTF-8)
        out.write(b"odd name")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe.txt")
    problems = []
    found = {p.id: p.text for p in read_passages(tmp_path, on_error="skip", report=problems.append)}
    assert found.pop(r"\xff\xfe.txt") == "odd name" and found.pop("good.txt") == "good"
    assert sorted(found) == ["bad.jsonl:1"]
    told = {}
    for problem in problems:
        name = problem.path.removeprefix(f"{tmp_path}/").split("/")[0]
        told.setdefault(name, []).append(str(problem))
    assert {name for name in BROKEN if len(told.get(name, ())) != 1} == set()
    wrong = {name: told[name][0] for name, (_, why) in BROKEN.items() if why not in told[name][0]}
    assert wrong == {}
    assert all("\n" not in str(problem) for problem in problems)
    left = {
        "empty.md": "has no text",
        "loop": "link to nothing, or to itself",
        "pipe.txt": "is a pipe",
    }
    assert all(why in told[name][0] for name, why in left.items())
    assert sum(problem.kind == "lost" for problem in problems) == len(BROKEN)


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_each_of_them_stops_a_strict_reader(tmp_path, monkeypatch, name):
    pytest.importorskip("pypdfium2")
    monkeypatch.setattr(streams, "LINE", 1 << 20)
    put(tmp_path, name, BROKEN[name][0])
    with pytest.raises(InputError):
        list(read_passages(tmp_path))


def test_a_folder_without_permission_is_told(tmp_path, monkeypatch):
    put(tmp_path, "a.txt", "x")
    put(tmp_path, "private/b.txt", "y")
    scandir = os.scandir

    def refused(path):
        if str(path).endswith("private"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    problems = []
    assert len(list(read_passages(tmp_path, on_error="skip", report=problems.append))) == 1
    assert [str(p) for p in problems] == [
        f"{tmp_path}/private: cannot be listed (Permission denied)"
    ]


def test_a_file_of_nothing_but_broken_lines_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("decoupled.index.documents.files.MOST", 10)
    put(tmp_path, "a.jsonl", "{broken\n" * 500)
    put(tmp_path, "b.jsonl", '{"text": 1}\n' * 500)
    problems = []
    assert list(read_passages(tmp_path, on_error="skip", report=problems.append)) == []
    assert len(problems) == 2 * 11
    for last in (problems[10], problems[21]):
        assert "more than 10 lines cannot be read; the rest is left out" in str(last)


def test_a_huge_json_list_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("decoupled.index.formats.json._LARGEST", 1 << 20)
    path = put(tmp_path, "a.json", json.dumps([{"text": "x" * (1 << 20)}]))
    with pytest.raises(InputError, match="is larger than 1 MB; cut it up"):
        list(read_passages(path))
