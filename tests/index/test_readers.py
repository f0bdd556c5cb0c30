"""Readers in processes of their own: hostile files are skipped and named, and nothing else changes."""

import gc
import io
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

import hostile
from corpora import put
from decoupled.errors import DecoupledError, InputError
from decoupled.index.documents import list_files, read_passages, total_bytes
from decoupled.index.documents import readers as readers_module
from decoupled.index.documents.files import File, Problems, UnreadableError
from decoupled.index.documents.readers import ReaderLimits, Readers
from decoupled.index.documents.sources import BY_NAME
from decoupled.index.formats.streams import opened

PAGE = (
    "<title>Rivers</title><h1>Of {0}</h1><p>The river {0} runs past towns.</p>"
    + "<p>x {0}</p>" * 40
)


def children():
    return psutil.Process().children()


@pytest.mark.parametrize("name", hostile.SKIPPED)
def test_a_hostile_file_is_skipped_and_named(tmp_path, name):
    pytest.importorskip("pypdfium2")
    put(tmp_path, f"m-{name}", hostile.SKIPPED[name]())
    put(tmp_path, "a.md", "# Before\n\nfirst")
    put(tmp_path, "z.md", "# After\n\nlast")
    problems, began = [], time.process_time()
    passages = list(read_passages(tmp_path, on_error="skip", report=problems.append))
    assert [p.text for p in passages if p.id[0] in "az"] == ["first", "last"]
    assert [(p.path, p.kind) for p in problems] == [(str(tmp_path / f"m-{name}"), "lost")]
    assert not [p for p in passages if p.id.startswith("m")]
    assert time.process_time() - began < 5
    with pytest.raises(InputError, match="on_error='skip'"):
        list(read_passages(tmp_path))


def test_a_reader_that_takes_too_long_is_killed_and_the_files_behind_it_are_read(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        ReaderLimits, "of", lambda size: ReaderLimits(seconds=1, memory=8 << 30, output=1 << 20)
    )
    monkeypatch.setattr(readers_module, "COUNT", 1)
    put(tmp_path, "a.docx", hostile.SKIPPED["span-many.docx"]())
    for name in "bcd":
        put(tmp_path, f"{name}.md", name)
    problems = []
    passages = list(read_passages(tmp_path, on_error="skip", report=problems.append))
    assert [p.text for p in passages] == ["b", "c", "d"]
    assert [p.message for p in problems] == [
        "takes more than 1 seconds to read, too long for its size"
    ]


def test_more_text_than_a_file_can_hold_ends_its_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(
        ReaderLimits, "of", lambda size: ReaderLimits(seconds=9, memory=1 << 30, output=9 << 10)
    )
    put(tmp_path, "a.md", "word " * 4000)
    put(tmp_path, "b.md", "b")
    problems = []
    passages = list(read_passages(tmp_path, on_error="skip", report=problems.append))
    assert [p.text for p in passages] == ["b"]
    assert "holds more than 0 MB of text" in str(problems)


def test_passages_are_those_of_one_process_in_its_order(tmp_path):
    for n in range(60):
        put(tmp_path, f"{n:03}.html", PAGE.format(n))
        put(tmp_path, f"{n:03}.txt", f"text {n}")
        put(
            tmp_path,
            f"{n:03}.eml",
            f"From: a@b\nSubject: S{n}\n\nmail {n} \udc80".encode("utf-8", "replace"),
        )
    put(
        tmp_path, "030.zip", hostile.zipped({"a.md": "# A\n\nin zip", "b.eml": "From: x@y\n\nmail"})
    )

    class Here(Readers):
        """Reads everything in this process."""

        def items(self, file, problems, on_bytes):
            with opened(file, on_bytes) as stream:
                if file.format.blocks is not None:
                    yield from file.format.blocks(file, stream)
                else:
                    yield from file.format.read(file, stream, problems)

        def ahead(self, files):
            return iter(files)

    def read():
        return list(read_passages(tmp_path, chunk=20))

    apart = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("decoupled.index.documents.passages.Readers", Here)
        assert read() == apart
    assert len(apart) > 180 and not children()


def test_processes_are_few_reused_and_started_when_needed(tmp_path):
    pages = [put(tmp_path, f"{n:02}.md", f"# {n}\n\ntext {n}") for n in range(40)]
    texts = put(tmp_path, "a.txt", "text")
    assert next(read_passages(texts)).text == "text" and not children()
    passages, seen = read_passages(*pages), set()
    for _ in passages:
        seen |= {child.pid for child in children()}
    assert len(seen) == 2 and not children()


def test_a_process_that_reads_imports_little():
    code = (
        "import sys, decoupled.index.documents.child\n"
        "assert not {'torch', 'openvino', 'numpy', 'tokenizers', 'lance', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})


def test_bytes_add_up_to_the_size_of_the_files_even_of_those_that_kill(tmp_path):
    put(tmp_path, "a.md", "# A\n\n" + "word " * 90_000)
    put(tmp_path, "b.docx", hostile.SKIPPED["span-many.docx"]())
    put(tmp_path, "c.eml", "From: a@b\n\nx")
    put(tmp_path, "d.zip", hostile.zipped({"a.md": "# A\n\nin zip"}))
    counts = []
    list(read_passages(tmp_path, on_error="skip", on_bytes=counts.append))
    assert sum(counts) == total_bytes(list_files([tmp_path], Problems("skip")))


def test_rows_that_are_not_read_to_their_end_leave_the_next_file_whole(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    for name, column in (("a", "number"), ("b", "text"), ("c", "number"), ("d", "text")):
        rows = pa.table({column: [f"{name}{n}" for n in range(30_000)]})
        pyarrow.parquet.write_table(rows, tmp_path / f"{name}.parquet")
    passages = [p.text for p in read_passages(tmp_path, report=lambda problem: None)]
    assert passages == [f"{name}{n}" for name in "bd" for n in range(30_000)]


def test_whoever_stops_early_leaves_no_process(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    for name in "abcd":
        rows = pa.table({"text": [f"{name}{n}" for n in range(30_000)]})
        pyarrow.parquet.write_table(rows, tmp_path / f"{name}.parquet")
    passages = read_passages(tmp_path)
    assert next(passages).text == "a0" and len(children()) == 2
    passages.close()
    del passages
    assert not children()
    with pytest.raises(RuntimeError, match="of the reader"):
        for _ in read_passages(tmp_path):
            raise RuntimeError("of the reader")
    gc.collect()
    assert not children()


def test_values_that_json_lacks_are_no_metadata(tmp_path):
    import datetime

    import pyarrow as pa
    import pyarrow.parquet

    row = {
        "text": "a",
        "day": datetime.date(2020, 1, 2),
        "raw": b"x",
        "tags": ["u", "v"],
        "n": 0.1,
        "m": 2,
    }
    pyarrow.parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    (passage,) = read_passages(tmp_path)
    assert passage.meta == {"tags": ["u", "v"], "n": 0.1, "m": 2}


def test_any_exception_of_any_reader_is_a_file_that_cannot_be_read(tmp_path):
    path = put(tmp_path, "a.txt", "x")
    file = File(path=path, shown="a.txt", name="a.txt", format=BY_NAME["text"])
    for error in (KeyError("k"), RecursionError(), ZeroDivisionError("z"), AssertionError()):
        with pytest.raises(UnreadableError, match=type(error).__name__), opened(file):
            raise error
    with pytest.raises(UnreadableError, match="memory"), opened(file):
        raise MemoryError
    with pytest.raises(InputError), opened(file):
        raise InputError("of the caller")
    with pytest.raises(KeyboardInterrupt), opened(file):
        raise KeyboardInterrupt


def test_a_process_that_cannot_start_is_an_error_not_many_skipped_files(tmp_path, monkeypatch):
    put(tmp_path, "a.md", "a")
    monkeypatch.setattr(readers_module, "_START", "raise SystemExit(3)")
    with pytest.raises(DecoupledError, match="cannot be started"):
        list(read_passages(tmp_path, on_error="skip"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_build_while_a_hostile_file_is_read(tmp_path, number):
    put(tmp_path, "a.docx", hostile.SKIPPED["span-many.docx"]())
    code = (
        "import signal, sys\nfrom decoupled.index.documents import readers, read_passages\n"
        # A shell starts its background jobs with the signal ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "limits = readers.ReaderLimits(seconds=60, memory=16 << 30, output=9999)\n"
        "readers.ReaderLimits.of = lambda size: limits\n"
        "print('begins', flush=True)\n"
        "list(read_passages(sys.argv[1], on_error='skip'))\n"
    )
    build = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert build.stdout.readline() == b"begins\n"
    parent, deadline = psutil.Process(build.pid), time.monotonic() + 20
    while not parent.children() and time.monotonic() < deadline:
        time.sleep(0.05)
    readers = parent.children()
    time.sleep(0.3)
    build.send_signal(number)
    assert build.wait(20) != 0
    psutil.wait_procs(readers, 5)
    if number == signal.SIGINT:
        assert not any(reader.is_running() for reader in readers)
    for reader in readers:
        if reader.is_running():
            reader.kill()


def test_what_a_library_prints_is_not_taken_for_an_answer(tmp_path):
    from decoupled.index.documents import child

    out = io.BytesIO()
    answer = child._Answer(out)
    answer.add("item", "text \udc80", 0, False)
    answer.send()
    (size,) = child.LENGTH.unpack(out.getvalue()[:4])
    assert (
        out.getvalue()[4:].decode("utf-8", "surrogatepass") == '[["item", "text \udc80", 0, false]]'
    )
    assert size == len(out.getvalue()) - 4


def test_what_a_reader_started_ends_with_it(tmp_path):
    pytest.importorskip("pypandoc")
    put(tmp_path, "a.ipynb", hostile.notebook("> " * 20_000 + "x"))
    put(tmp_path, "b.md", "b")

    def pandocs():
        return [p for p in psutil.Process().children(recursive=True) if "pandoc" in p.name()]

    with Readers(1) as readers:
        files = list(list_files([tmp_path], Problems("skip")))
        assert list(readers.ahead(iter(files))) == files
        until = time.monotonic() + 20
        while not (started := pandocs()) and time.monotonic() < until:
            time.sleep(0.01)
    assert started
    psutil.wait_procs(started, timeout=5)
    assert not [p for p in started if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
