"""What a user can name: documents, folders, standard input, pipes; and how far the reading is."""

import gzip
import io
import json
import lzma
import os
import sys
import threading

import pytest

from corpora import LINES, PASSAGES, ROWS, SQUAD, both_ways, put
from decoupled.errors import InputError
from decoupled.index.documents import list_files, read_passages, total_bytes
from decoupled.index.documents.chunks import WHOLE_CHARS
from decoupled.index.documents.files import Problems
from decoupled.model.tokens import Passage


def pipe(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_text_file_is_a_passage(tmp_path):
    path = put(tmp_path, "note.txt", "First.\r\n\r\nSecond.\r\n")
    meta = {"document": "note.txt", "start": 0, "end": 15}
    expected = [Passage(id="note.txt", text="First.\n\nSecond.", meta=meta)]
    assert list(read_passages(path)) == expected
    assert list(read_passages(path, chunk=None)) == expected


@pytest.mark.parametrize(
    ("content", "title", "text"),
    [
        ("intro\n\n## The title ##\n\n# Later\n", "The title", "intro\n\nThe title\n\nLater"),
        ("The title\n=====\n\n# Later\n", "The title", "The title\n\nLater"),
        ("```\n# a comment\n```\n# The title\n", "The title", "# a comment\n\nThe title"),
        ("#hashtag and no heading\n", "", "#hashtag and no heading"),
    ],
)
def test_a_whole_markdown_file_has_its_first_heading_as_title(tmp_path, content, title, text):
    found = list(read_passages(put(tmp_path, "a.md", content), chunk=None))
    assert [(p.id, p.title, p.text) for p in found] == [("a.md", title, text)]


def test_a_book_that_is_not_to_be_cut_is_cut_between_paragraphs(tmp_path):
    paragraphs = [f"Paragraph {i} " + "word " * 300 for i in range(60)]
    path = put(tmp_path, "book.md", "# Book\n\n" + "\n\n".join(paragraphs))
    found = list(read_passages(path, chunk=None))
    assert [p.id for p in found] == ["book.md#book/1", "book.md#book/2", "book.md#book/3"]
    assert all(len(p.text) <= WHOLE_CHARS and p.title == "Book" for p in found)
    assert all(p.text.startswith("Paragraph") for p in found[1:])
    assert "".join("".join(p.text for p in found).split()) == "".join(
        path.read_text().removeprefix("# ").split()
    )


def test_a_bad_document_costs_only_itself(tmp_path):
    put(tmp_path, "a.txt", b"fine\nbad \0\n")
    put(tmp_path, "b.txt", "good")
    put(tmp_path, "c.txt", "")
    ids, problems = both_ways(tmp_path, "a.txt: holds NUL bytes, so it is binary, not text")
    assert ids == ["b.txt"]
    assert str(problems[1]) == f"{tmp_path / 'c.txt'}: has no text"


def test_folders_are_walked_in_order(tmp_path):
    put(tmp_path, "b.jsonl", '{"text": "x"}')
    put(tmp_path, "a.txt", "y")
    put(tmp_path, "sub/c.md.gz", gzip.compress(b"z"))
    put(tmp_path, "pic.png", b"\x89PNG")
    put(tmp_path, ".hidden.txt", "no")
    put(tmp_path, ".git/d.txt", "no")
    problems = []
    ids = [p.id for p in read_passages(tmp_path, report=problems.append)]
    assert ids == ["a.txt", "b.jsonl:1", "sub/c.md"]
    assert [p.path for p in problems] == [str(tmp_path / "pic.png")]
    assert (
        "the ending .png is not known; if it is text, give --as-text '*.png'" in problems[0].message
    )


def test_ids_of_several_sources_never_collide(tmp_path):
    one = put(tmp_path, "one/docs.jsonl", '{"text": "x"}')
    two = put(tmp_path, "two/docs.jsonl", '{"text": "y"}')
    ids = ["one/docs.jsonl:1", "two/docs.jsonl:1"]
    assert [p.id for p in read_passages(one, two)] == ids
    assert [p.id for p in read_passages(one.parent, str(two.parent))] == ids


def test_a_beir_folder_gives_its_corpus(tmp_path):
    put(
        tmp_path,
        "scifact/corpus.jsonl.gz",
        gzip.compress(b'{"_id": "4", "title": "T", "text": "x"}'),
    )
    put(tmp_path, "scifact/queries.jsonl", '{"_id": "q", "text": "y"}')
    put(tmp_path, "scifact/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\t4\t1\n")
    expected = [Passage(id="4", title="T", text="x")]
    assert list(read_passages(tmp_path / "scifact")) == expected
    assert list(read_passages(tmp_path)) == expected


def test_a_list_of_sources_is_explained(tmp_path):
    with pytest.raises(InputError, match=r"a source is \['a.jsonl'\]; give paths one by one"):
        read_passages(["a.jsonl"])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (LINES.encode(), PASSAGES),
        (gzip.compress(LINES.encode()), PASSAGES),
        (json.dumps(ROWS).encode(), PASSAGES),
        (json.dumps(ROWS, indent=2).encode(), PASSAGES),
        (
            b"one\n\n[2] two\n",
            [Passage(id="stdin:1", text="one"), Passage(id="stdin:3", text="[2] two")],
        ),
        (
            b'id;text\r\na;"one; two"\r\n',
            [Passage(id="a", text="one; two")],
        ),
        (b"Text\tlang\none\ten\n", [Passage(id="stdin:2", text="one", meta={"lang": "en"})]),
        (
            b"text, and more\nquery\n",
            [Passage(id="stdin:1", text="text, and more"), Passage(id="stdin:2", text="query")],
        ),
        (b"", []),
    ],
    ids=["jsonl", "gzip", "list", "indented", "lines", "csv", "tsv", "words", "empty"],
)
def test_standard_input(monkeypatch, content, expected):
    pipe(monkeypatch, content)
    assert list(read_passages("-")) == expected
    assert not sys.stdin.buffer.closed


def test_lines_of_text_that_are_not_utf8(monkeypatch):
    pipe(monkeypatch, b"one\nt\xff\nthree\n")
    problems = []
    found = list(read_passages("-", on_error="skip", report=problems.append))
    assert [p.id for p in found] == ["stdin:1", "stdin:3"]
    assert [str(p) for p in problems] == ["stdin:2: byte 0xff at column 2 is not UTF-8 text"]


def test_a_file_that_goes_away_is_a_problem(tmp_path):
    path = put(tmp_path, "a.jsonl", LINES)
    strict = read_passages(path)
    path.unlink()
    with pytest.raises(InputError, match=r"a\.jsonl: is gone, or a link to nothing; mend it"):
        list(strict)


def test_a_dead_link_in_a_folder_is_told(tmp_path):
    put(tmp_path, "a.jsonl", LINES)
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "nowhere")
    problems = []
    assert list(read_passages(tmp_path, report=problems.append)) == PASSAGES
    told = f"{tmp_path / 'b.jsonl'}: is a link to nothing, or to itself"
    assert [str(p) for p in problems] == [told]


def test_squad_on_standard_input(monkeypatch):
    pipe(monkeypatch, json.dumps(SQUAD, indent=1).replace("{\n", "{", 1).encode())
    assert [p.text for p in read_passages("-")] == ["One.", "Two.", "Three."]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(LINES,))
    writer.start()
    assert list(read_passages(path)) == PASSAGES
    writer.join()
    assert total_bytes(list_files([path], Problems("skip"))) is None


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ((), "no corpus is named; give files, folders, or - for standard input"),
        (("gone.jsonl",), "gone.jsonl does not exist; check the path"),
    ],
)
def test_wrong_sources_fail_before_anything_is_read(tmp_path, monkeypatch, sources, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        read_passages(*sources, on_error="skip")
    assert message in str(error.value)


def test_a_file_of_no_known_ending_is_text_where_it_is_named(tmp_path):
    named = put(tmp_path, "notes.xyz", "some text")
    put(tmp_path, "README.old", "more")
    assert [p.text for p in read_passages(named)] == ["some text"]
    assert [p.text for p in read_passages(tmp_path)] == ["more"]


def test_on_error_is_checked(tmp_path):
    with pytest.raises(InputError, match="on_error='ignore'; choose 'stop' or 'skip'"):
        read_passages(put(tmp_path, "a.txt", "x"), on_error="ignore")


def test_bytes_add_up_to_the_total(tmp_path):
    put(tmp_path, "a.jsonl.gz", gzip.compress(LINES.encode() * 20_000, mtime=0))
    put(tmp_path, "b.csv", "id,text\n" + "c,x\n" * 50_000)
    put(tmp_path, "c.jsonl.xz", lzma.compress(LINES.encode() * 20_000)[:-50])
    put(tmp_path, "d.md", "# x")
    put(tmp_path, "e.png", b"12345")
    counts = []
    list(read_passages(tmp_path, on_error="skip", on_bytes=counts.append))
    assert sum(counts) == total_bytes(list_files([tmp_path], Problems("skip")))
    assert total_bytes(list_files([tmp_path], Problems("skip"))) == sum(
        p.stat().st_size for p in tmp_path.glob("[a-d].*")
    )
    assert max(counts) <= 1 << 16


def test_bytes_are_counted_as_passages_come(tmp_path):
    path = put(tmp_path, "a.jsonl", LINES * 100_000)
    counts = []
    passages = read_passages(path, on_bytes=counts.append)
    next(passages)
    assert 0 < sum(counts) < total_bytes(list_files([path], Problems("skip"))) / 10
    assert total_bytes(list_files(["-", path], Problems("skip"))) is None


def test_settings_in_folders_are_files_of_another_kind(tmp_path):
    put(tmp_path, "package.json", '{\n "name": "x",\n "version": "1"\n}')
    put(tmp_path, "meta.json", '{"haddock_version": "2"}')
    put(tmp_path, "log.jsonl", '{"level": 1}\n{"level": 2}\n')
    put(tmp_path, "numbers.csv", "a,b\n1,2\n")
    put(tmp_path, "list.json", "17")
    put(tmp_path, "cut.json", '[{"text": "x"}, {"te')
    put(tmp_path, "docs.jsonl", '{"text": "y"}\n{"level": 2}\n')
    problems = []
    found = read_passages(tmp_path, on_error="skip", report=problems.append)
    assert [p.id for p in found] == ["docs.jsonl:1"]
    kinds = {p.path.rpartition("/")[2]: p.kind for p in problems}
    others = ("list.json", "log.jsonl", "meta.json", "numbers.csv", "package.json")
    assert kinds == dict.fromkeys(others, "other") | {"cut.json": "lost", "docs.jsonl": "lost"}
    for name in others:
        with pytest.raises(InputError, match=f"{name}.*expected"):
            list(read_passages(tmp_path / name))
