"""Files of records: every format, every compression, and every way a file can be broken."""

import bz2
import gzip
import io
import json
import lzma
import random
import sys

import pytest

from corpora import LINES, PASSAGES, ROWS, SQUAD, both_ways, put
from decoupled.errors import InputError
from decoupled.index.documents import read_passages
from decoupled.measure.pairs import read_queries
from decoupled.model.tokens import Passage

NOISE = random.Random(0).randbytes(20_000)
LONG_NUMBER = b'{"text": "t", "n": ' + b"9" * 5000 + b"}"


class Unclosed(io.BytesIO):
    """Bytes that can be looked at after their reader is done with them."""

    def close(self):
        pass


# jsonl --------------------------------------------------------------------------------------------


def test_fields_go_by_their_usual_names(tmp_path):
    rows = [
        {
            "_id": 7,
            "contents": "x",
            "Title": "T",
            "lang": "en",
            "n": 3,
            "tags": ["a"],
            "url": None,
            "x": [1],
            "y": [],
        },
        {"docid": "d", "body": "y", "metadata": {"k": [1]}, "ok": True},
        {"pid": "p", "passage": "z", "meta": "plain"},
    ]
    path = put(tmp_path, "docs.ndjson", "\n".join(map(json.dumps, rows)))
    assert list(read_passages(path)) == [
        Passage(id="7", text="x", title="T", meta={"lang": "en", "n": 3, "tags": ["a"]}),
        Passage(id="d", text="y", meta={"k": [1], "ok": True}),
        Passage(id="p", text="z", meta={"meta": "plain"}),
    ]


def test_a_missing_id_is_file_and_line_and_survives_compression(tmp_path):
    content = '{"text": "x"}\n\n{"text": "y", "id": ""}\n{"text": "z", "id": null}\n'
    plain = put(tmp_path, "docs.jsonl", content)
    ids = [p.id for p in read_passages(plain)]
    assert ids == ["docs.jsonl:1", "docs.jsonl:3", "docs.jsonl:4"]
    packed = put(tmp_path, "z/docs.jsonl.gz", gzip.compress(content.encode()))
    assert [p.id for p in read_passages(packed)] == ids


def test_byte_order_mark_windows_line_ends_and_surrogate_pairs(tmp_path):
    content = (
        b"\xef\xbb\xbf" + b'{"id": "a", "text": "x\\ud83d\\ude00"}\r\n{"id": "b", "text": "z"}'
    )
    path = put(tmp_path, "docs.jsonl", content)
    assert [p.text for p in read_passages(path)] == ["x\U0001f600", "z"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            b'{"id": "x"',
            "docs.jsonl:2: is not one JSON object on one line (Expecting ',' delimiter",
        ),
        (
            b'{"text": "broken in',
            "docs.jsonl:2: is not one JSON object on one line (Invalid control character at column",
        ),
        (
            rb'{"text": "x\ud800y"}',
            r"docs.jsonl:2: holds a lone surrogate ('\ud800'), which is not text",
        ),
        (rb'{"text": "x", "lang": "\udfff"}', r"docs.jsonl:2: holds a lone surrogate ('\udfff')"),
        (
            b'{"text": "x", "big": 36893488147419103232}',
            "docs.jsonl:2: big is 36893488147419103232; an integer must fit 64 bits",
        ),
        (b'{"text": "x", "far": 1e999}', "docs.jsonl:2: 'far' is inf, which cannot be stored"),
        (rb'{"text": "x", "a\u0000b": 1}', r"docs.jsonl:2: 'a\x00b' is 1, which cannot be stored"),
        (b'["x"]', "docs.jsonl:2: is the list ['x']; expected an object"),
        (b'{"text": "caf\xe9"}', "docs.jsonl:2: byte 0xe9 at column 14 is not UTF-8"),
        (
            b'{"id": "x", "txt": "y"}',
            "docs.jsonl:2: has no text: expected a field text or contents",
        ),
        (b'{"text": 17}', "docs.jsonl:2: text is 17; expected a string"),
        (b'{"text": null}', "docs.jsonl:2: text is None; expected a string"),
        (b'{"id": ["x"], "text": "y"}', "docs.jsonl:2: id is ['x']; expected a string or a number"),
        pytest.param(b"[" * 100_000, "docs.jsonl:2: holds a value that cannot be read", id="deep"),
        pytest.param(LONG_NUMBER, "docs.jsonl:2: holds a value that cannot be read", id="digits"),
    ],
)
def test_a_bad_line_stops_or_is_skipped(tmp_path, line, message):
    if line == LONG_NUMBER and not hasattr(sys, "get_int_max_str_digits"):
        pytest.skip("this Python reads integers of any length")
    path = put(
        tmp_path, "docs.jsonl", b'{"id": "a", "text": "x"}\n%s\n{"id": "b", "text": "y"}' % line
    )
    ids, problems = both_ways(path, message)
    assert ids == ["a", "b"]
    assert [(p.path, p.line) for p in problems] == [(str(path), 2)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(NOISE, "docs.jsonl:1: holds NUL bytes", id="noise"),
        (b"\xe9\xe8\x81\n" * 4, "docs.jsonl:1: byte 0xe9 at column 1 is not UTF-8"),
        (ROWS[0]["text"].encode("utf-16"), "docs.jsonl:1: is UTF-16; convert it with: iconv"),
    ],
)
def test_binary_data_is_refused_at_line_1(tmp_path, content, message):
    ids, _ = both_ways(put(tmp_path, "docs.jsonl", content), message)
    assert ids == []


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.json"])
def test_what_pandas_writes_for_missing_is_missing(tmp_path, name):
    row = b'{"id": "a", "text": "x", "title": NaN, "year": NaN, "lang": "en"}'
    path = put(tmp_path, name, row if name == "docs.jsonl" else b"[%s]" % row)
    assert list(read_passages(path)) == [Passage(id="a", text="x", meta={"lang": "en"})]


def test_an_empty_passage_is_left_out_and_told(tmp_path):
    path = put(tmp_path, "d.jsonl", '{"text": " "}\n{"text": "", "title": "T"}\n{"text": "x"}')
    problems = []
    assert [p.id for p in read_passages(path, report=problems.append)] == ["d.jsonl:2", "d.jsonl:3"]
    assert [str(p) for p in problems] == [f"{path}:1: has neither text nor title"]


def test_a_long_line_is_no_problem(tmp_path):
    path = put(tmp_path, "docs.jsonl", json.dumps({"id": "a", "text": "x" * 1_000_000}))
    assert len(next(read_passages(path)).text) == 1_000_000


# compression --------------------------------------------------------------------------------------

PACKERS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": lambda data: bz2.compress(data, 1)}


@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed_files_read_alike(tmp_path, suffix):
    pack = PACKERS[suffix]
    twice = pack(LINES.encode()) + pack(b'{"id": "c", "text": "z"}')
    path = put(tmp_path, f"docs.jsonl{suffix}", twice)
    assert list(read_passages(path)) == [*PASSAGES, Passage(id="c", text="z")]
    misnamed = put(tmp_path, "docs.jsonl", pack(LINES.encode()))
    assert list(read_passages(misnamed)) == PASSAGES


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_truncated_file_gives_its_beginning_then_a_problem(tmp_path, suffix):
    rows = "".join(f'{{"id": "{i}", "text": "{i * 2654435761 % 2**64}"}}\n' for i in range(20_000))
    whole = PACKERS[suffix](rows.encode())
    path = put(tmp_path, f"docs.jsonl{suffix}", whole[: len(whole) // 2])
    ids, problems = both_ways(path, "data ends too early; fetch or write the whole file again")
    assert len(ids) > 5_000
    assert ids == [str(i) for i in range(len(ids))]
    assert problems[0].line == len(ids) + 1


@pytest.mark.parametrize("suffix", PACKERS)
def test_damaged_compression_is_a_problem(tmp_path, suffix):
    whole = bytearray(PACKERS[suffix](NOISE.hex().encode()))
    whole[len(whole) // 2 : len(whole) // 2 + 8] = b"damaged!"
    both_ways(put(tmp_path, f"docs.jsonl{suffix}", bytes(whole)), "data is damaged (")


def test_zstd_names_the_package_it_needs(tmp_path, monkeypatch):
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    path = put(tmp_path, "docs.jsonl.zst", b"\x28\xb5\x2f\xfd\x00")
    told = r"docs\.jsonl\.zst: is compressed .* pip install backports.zstd"
    with pytest.raises(InputError, match=told):
        list(read_passages(path))


def test_zstd_frames(tmp_path):
    pack = pytest.importorskip("backports.zstd").compress
    data = pack(LINES.encode()) + pack(b'{"id": "c", "text": "z"}')
    assert len(list(read_passages(put(tmp_path, "docs.jsonl.zst", data)))) == 3
    both_ways(put(tmp_path, "cut.jsonl.zst", data[:-5]), "zstd data ends too early")
    both_ways(put(tmp_path, "bad.jsonl.zst", data[:6] + b"????" * 9), "zstd data is damaged")


# json ---------------------------------------------------------------------------------------------


def test_a_list_of_objects(tmp_path):
    path = put(tmp_path, "docs.json", json.dumps([*ROWS, {"text": "Gamma."}], indent=1))
    assert list(read_passages(path)) == [*PASSAGES, Passage(id="docs.json:3", text="Gamma.")]


def test_squad_gives_each_paragraph_once(tmp_path):
    path = put(tmp_path, "train.json", json.dumps(SQUAD))
    found = list(read_passages(path))
    assert [(p.id, p.text) for p in found] == [
        ("Super_Bowl:1", "One."),
        ("Super_Bowl:2", "Two."),
        ("Super_Bowl:4", "Three."),
    ]
    assert found[0].title == "Super Bowl"
    assert [(q.id, q.text) for q in read_queries(path)] == [("q1", "Which?"), ("q2", "What?")]


@pytest.mark.parametrize(
    ("paragraph", "message"),
    [
        (
            {"text": "x"},
            "s.json: item 1: a paragraph is {'text': 'x'}; expected an object with a context",
        ),
        ("x", "s.json: item 1: a paragraph is 'x'; expected an object with a context"),
    ],
)
def test_a_broken_article_gives_what_precedes_the_break(tmp_path, paragraph, message):
    good = {"title": "B", "paragraphs": [{"context": "y"}]}
    broken = {"title": "A", "paragraphs": [{"context": "w"}, paragraph]}
    path = put(tmp_path, "s.json", json.dumps({"data": [broken, good]}))
    assert both_ways(path, message)[0] == ["A:1", "B:1"]


def test_a_row_may_have_paragraphs_and_be_no_article(tmp_path):
    path = put(tmp_path, "docs.jsonl", '{"id": "a", "text": "x", "paragraphs": ["x"]}')
    assert list(read_passages(path)) == [Passage(id="a", text="x", meta={"paragraphs": ["x"]})]


def test_a_json_file_of_lines(tmp_path):
    assert list(read_passages(put(tmp_path, "docs.json", LINES))) == PASSAGES


@pytest.mark.parametrize(
    ("content", "message", "ids"),
    [
        (
            '[{"id": "a", "text": "x"}, 3, {"id": "b", "text": "y"}]',
            "docs.json: item 2: is the int",
            "ab",
        ),
        (
            '[{"id": "a", "text": "x"},\n{"id": "b", "text"}]',
            "docs.json:2: is not JSON (Expecting",
            "",
        ),
        ('[{"id": "a", "text": "x"},\n{"id": "b", "te', "docs.json:2: is cut short", ""),
        ('[{"id": "a", "text": "x"}', "docs.json:1: is cut short (Expecting ','", ""),
        ('[{"id": "a", "text": "x"} 3]', "docs.json:1: is not JSON (Expecting ','", ""),
        ('{\n"rows": []}', "docs.json: is an object with rows; expected a list of objects", ""),
        ('"text"', "docs.json: is 'text'; expected a list of objects", ""),
        (b'[{"id": "a",\n "text": "\xe9"}]', "is not UTF-8", ""),
    ],
)
def test_broken_json(tmp_path, content, message, ids):
    found, _ = both_ways(put(tmp_path, "docs.json", content), message)
    assert found == list(ids)


# tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("docs.csv", 'ID,Text,lang\r\na,"x, ""y""\nz",en\r\n\r\nb,w,\r\n'),
        ("docs.csv", 'ID;Text;lang\na;"x, ""y""\nz";en\nb;w;\n'),
        ("docs.tsv", 'ID\tText\tlang\na\t"x, ""y""\nz"\ten\nb\tw\t\n'),
    ],
)
def test_tables_of_spreadsheets(tmp_path, name, content):
    assert list(read_passages(put(tmp_path, name, content))) == [
        Passage(id="a", text='x, "y"\nz', meta={"lang": "en"}),
        Passage(id="b", text="w"),
    ]


def test_quotation_marks_in_plain_tsv_are_text(tmp_path):
    content = 'id\ttext\n1\t" The pie , he said .\n2\t"A" is "B"\n3\t"whole"\n'
    path = put(tmp_path, "docs.tsv", content)
    texts = ['" The pie , he said .', '"A" is "B"', '"whole"']
    assert [p.text for p in read_passages(path)] == texts
    late = "id\ttext\n" + "0\tx\n" * 3000 + '1\t"A" is "B"\n'
    assert [p.text for p in read_passages(put(tmp_path, "late.tsv", late))][-1] == '"A" is "B"'


def test_number_and_text_need_no_header(tmp_path):
    path = put(tmp_path, "collection.tsv", "0\tThe first\n1\tThe second\n")
    assert [(p.id, p.text) for p in read_passages(path)] == [
        ("0", "The first"),
        ("1", "The second"),
    ]
    assert [q.id for q in read_queries(path)] == ["0", "1"]


def test_cells_may_be_long(tmp_path):
    path = put(tmp_path, "docs.csv", "id,text\na," + "x" * 1_000_000)
    assert len(next(read_passages(path)).text) == 1_000_000


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"only", "docs.csv:3: has 1 field; the header has 2"),
        (b"a,b,c", "docs.csv:3: has 3 fields; the header has 2"),
        (b"c,caf\xe9", "docs.csv:3: holds bytes that are not UTF-8"),
        (b'c,"x"y', "docs.csv:3: is not a row of csv ("),
    ],
)
def test_a_bad_row_stops_or_is_skipped(tmp_path, row, message):
    path = put(tmp_path, "docs.csv", b'id,text\na,"x"\n' + row + b'\nb,"y"\n')
    ids, problems = both_ways(path, message)
    assert ids == ["a", "b"]
    assert [p.line for p in problems] == [3]


def test_a_quotation_mark_that_never_closes_is_a_problem(tmp_path):
    path = put(tmp_path, "docs.csv", 'id,text\na,"x"\nb,"y\n' + "c,z\n" * 3)
    ids, _ = both_ways(path, "docs.csv:3: is not a row of csv (unexpected end of data)")
    assert ids == ["a"]


def test_a_table_without_text_is_one_problem(tmp_path):
    path = put(tmp_path, "docs.csv", "id,abstract\na,x\nb,y\n")
    _, problems = both_ways(path, "docs.csv:1: has no text: expected a field text or")
    assert len(problems) == 1
    assert problems[0].message.endswith(
        "found id, abstract; name the field that has it: --text-field"
    )
