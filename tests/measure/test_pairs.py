"""Queries, judgments and pairs: every layout that people train and check with."""

import gzip
import json

import pytest

from corpora import both_ways, put
from decoupled.errors import InputError
from decoupled.measure.pairs import Pair, Span, read_pairs, read_qrels, read_queries


def rows(folder, *objects):
    return put(folder, "p.jsonl", "\n".join(map(json.dumps, objects)))


def stops(path, message):
    """The ids of the pairs around the one problem of a file."""
    ids, problems = both_ways(path, message, read_pairs)
    assert len(problems) == 1
    return ids


# queries and judgments ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("q.jsonl", '{"_id": 3, "text": "x"}\n{"query": "y"}', [("3", "x"), ("q.jsonl:2", "y")]),
        ("q.txt", "x?\n\ny?\n", [("q.txt:1", "x?"), ("q.txt:3", "y?")]),
        ("q.tsv", "qid\tQuestion\n7\tx\n", [("7", "x")]),
        ("q.csv", "query_id,query\n7,x\n", [("7", "x")]),
    ],
)
def test_queries(tmp_path, name, content, expected):
    found = read_queries(put(tmp_path, name, content))
    assert [(q.id, q.text) for q in found] == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"id": 1, "txt": "x"}',
            "q.jsonl:1: has no query: expected a field text or query or question",
        ),
        ('{"id": 1, "query": 3}', "q.jsonl:1: the query is 3; expected a text"),
        ('{"id": 1, "query": " "}', "q.jsonl:1: the query is ' '; expected a text"),
    ],
)
def test_bad_queries(tmp_path, content, message):
    path = put(tmp_path, "q.jsonl", content + '\n{"query": "fine"}')
    with pytest.raises(InputError) as error:
        list(read_queries(path))
    assert message in str(error.value)
    assert [q.text for q in read_queries(path, on_error="skip")] == ["fine"]


@pytest.mark.parametrize(
    "content",
    [
        "query-id\tcorpus-id\tscore\nq1\td 1\t2\nq1\td2\t0\nq2\td3\t1\n",
        "q1\td 1\t2\nq1\td2\t0\nq2\td3\t1.0",
        "q1\t0\td 1\t2\r\nq1\t0\td2\t0\r\nq2\t0\td3\t1\r\n",
    ],
)
def test_judgments(tmp_path, content):
    expected = {"q1": {"d 1": 2, "d2": 0}, "q2": {"d3": 1}}
    assert read_qrels(put(tmp_path, "qrels.tsv", content)) == expected
    assert read_qrels(put(tmp_path, "qrels.tsv.gz", gzip.compress(content.encode()))) == expected


def test_judgments_of_trec_are_separated_by_spaces(tmp_path):
    assert read_qrels(put(tmp_path, "qrels.txt", "q1 0 d1  -1\n")) == {"q1": {"d1": -1}}


@pytest.mark.parametrize("line", ["q1\td2\tbad", "q1\td2", "a\tb\tc\td\t1"])
def test_a_bad_judgment_names_its_line(tmp_path, line):
    path = put(tmp_path, "qrels.tsv", f"query-id\tcorpus-id\tscore\nq1\td1\t1\n{line}\n")
    with pytest.raises(InputError) as error:
        read_qrels(path)
    assert f"qrels.tsv:3: is {line!r}; expected query-id, corpus-id, score" in str(error.value)


# pairs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"query": "q", "passage": "p"}, Pair(query="q", passage="p", group="q")),
        (
            {"Query": "q", "passage": "p", "label": 1, "id": 5, "qid": "x", "title": "T"},
            Pair(query="q", passage="p", label=1, id="5", group="x", title="T"),
        ),
        (
            {"query": "q", "passage": "p", "score": 0.5},
            Pair(query="q", passage="p", label=0.5, group="q"),
        ),
        (
            {"premise": "a", "hypothesis": "b", "label": "neutral"},
            Pair(query="a", passage="b", label="neutral", group="a"),
        ),
        (
            {"sentence1": "a", "sentence2": "b", "label": None},
            Pair(query="a", passage="b", group="a"),
        ),
        (
            {"question": "is it?", "passage": "b", "answer": True},
            Pair(query="is it?", passage="b", label=1, group="is it?"),
        ),
    ],
)
def test_a_row_of_two_texts(tmp_path, row, expected):
    (found,) = read_pairs(rows(tmp_path, row))
    assert found == Pair(**{**vars(expected), "id": expected.id or "p.jsonl:1"})


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"query": "q", "positive": "a", "negative": "b"}, [("a", 1), ("b", 0)]),
        (
            {"query": "q", "positives": ["a", "b"], "negatives": ["c"]},
            [("a", 1), ("b", 1), ("c", 0)],
        ),
        (
            {"anchor": "q", "positive": "a", "negative_1": "b", "negative_2": "c"},
            [("a", 1), ("b", 0), ("c", 0)],
        ),
        ({"query": "q", "pos": ["a"], "neg": []}, [("a", 1)]),
        (
            {"query": "q", "passages": ["a", {"text": "b", "score": 2.5}, {"passage": "c"}]},
            [("a", None), ("b", 2.5), ("c", None)],
        ),
    ],
)
def test_a_row_of_several_passages_is_a_group(tmp_path, row, expected):
    found = list(read_pairs(rows(tmp_path, {**row, "qid": 9})))
    assert [(p.passage, p.label) for p in found] == expected
    assert {(p.query, p.group) for p in found} == {("q", "9")}
    assert [p.id for p in found] == [f"p.jsonl:1:{i + 1}" for i in range(len(found))]


def test_answers_as_hugging_face_has_them(tmp_path):
    row = {
        "id": "x",
        "question": "Who?",
        "context": "Ann met Bob.",
        "answers": {"text": ["Bob", "Ann"], "answer_start": [8, 0]},
    }
    none = {**row, "id": "y", "answers": {"text": [], "answer_start": []}}
    one, two = read_pairs(rows(tmp_path, row, none))
    assert one.answers == (Span(text="Bob", start=8), Span(text="Ann", start=0))
    assert (one.id, one.group, one.label) == ("x", "x", None)
    assert (two.answers, two.label) == ((), None)


def squad(*questions):
    article = {"title": "A_B", "paragraphs": [{"context": "Ann met Bob.", "qas": list(questions)}]}
    return json.dumps({"version": "1.1", "data": [article]})


def test_squad_files(tmp_path):
    content = squad(
        {"id": "1", "question": "Who?", "answers": [{"text": "Bob", "answer_start": 8}]},
        {"id": "2", "question": "Why?", "is_impossible": True, "answers": []},
    )
    common = {"passage": "Ann met Bob.", "title": "A B"}
    assert list(read_pairs(put(tmp_path, "s.json.gz", gzip.compress(content.encode())))) == [
        Pair(query="Who?", answers=(Span(text="Bob", start=8),), id="1", group="1", **common),
        Pair(query="Why?", id="2", group="2", **common),
    ]


def test_answers_as_texts_with_and_without_their_places(tmp_path):
    row = {"query": "Who?", "passage": "Ann met Bob."}
    given = ([["Bob", 8]], ["bob", "Eve"], ["Eve"], [])
    file = rows(tmp_path, *({**row, "answers": one} for one in given))
    found = [(pair.answers, pair.label) for pair in read_pairs(file)]
    bob = (Span(text="Bob", start=8),)
    assert found == [(bob, None), (bob, None), ((), 1), ((), None)], "the third is in other words"


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            [{"text": "Bob", "answer_start": 4}],
            "the answer 'Bob' is not at 4 of its passage, 'met' is",
        ),
        ([{"text": "Bob"}], "an answer is 'Bob' at None; expected text and answer_start"),
        ([{"text": "Bob", "answer_start": -4}], "an answer is 'Bob' at -4; expected text and"),
        ([7], "answers is [7]; expected a list of objects with text and answer_start, of"),
    ],
)
def test_an_answer_must_be_where_it_says(tmp_path, answers, message):
    path = put(
        tmp_path,
        "s.json",
        squad(
            {"id": "1", "question": "Who?", "answers": answers},
            {"id": "2", "question": "Why?", "answers": []},
        ),
    )
    assert stops(path, f"s.json: item 1: {message}") == ["2"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "mrpc.tsv",
            'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\t" He said .\tShe said "\n',
            [('" He said .', 'She said "', 1, "mrpc.tsv:2", '" He said .')],
        ),
        (
            "wikiqa.tsv",
            "qid\tpid\tquestion\tsentence\tlabel\nQ1\tD1\thow\tso\t0\n",
            [("how", "so", 0, "D1", "Q1")],
        ),
        (
            "stsb.csv",
            "index,sentence1,sentence2,score\n3,a,b,2.500\n4,a,c,\n",
            [("a", "b", 2.5, "3", "a"), ("a", "c", None, "4", "a")],
        ),
        (
            "qqp.tsv",
            'question1\tquestion2\tis_duplicate\n"a ""b"""\tc\t1\n',
            [('a "b"', "c", 1, "qqp.tsv:2", 'a "b"')],
        ),
        (
            "nli.tsv",
            "premise\thypothesis\tgold_label\na\tb\tentailment\n",
            [("a", "b", "entailment", "nli.tsv:2", "a")],
        ),
        (
            "triplets.csv",
            "query,positive,negative\nq,a,b\nq,c,\n",
            [
                ("q", "a", 1, "triplets.csv:2:1", "q"),
                ("q", "b", 0, "triplets.csv:2:2", "q"),
                ("q", "c", 1, "triplets.csv:3:1", "q"),
            ],
        ),
    ],
)
def test_tables_of_pairs(tmp_path, name, content, expected):
    found = read_pairs(put(tmp_path, name, content))
    assert [(p.query, p.passage, p.label, p.id, p.group) for p in found] == expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": "x", "b": "y"}, "p.jsonl:1: is no pair: expected query and passage, question and"),
        ({"query": "x"}, "or query with positive, negative or passages; found query"),
        ({"query": 3, "passage": "y"}, "p.jsonl:1: the query is 3; expected a text"),
        ({"query": "x", "passages": [3]}, "p.jsonl:1: the passage is 3; expected a text"),
        (
            {"query": "x", "passages": [{"id": 3}]},
            "p.jsonl:1: the passage is None; expected a text",
        ),
        (
            {"query": "x", "passage": "y", "label": [1]},
            "the label is [1]; expected a word or a number",
        ),
        (
            {"query": "x", "passage": "y", "label": float("inf")},
            "the label is inf; expected a finite number",
        ),
    ],
)
def test_a_row_that_is_no_pair(tmp_path, row, message):
    path = rows(tmp_path, row, {"query": "q", "passage": "p"})
    assert stops(path, message) == ["p.jsonl:2"]


def test_a_table_of_something_else_is_one_problem(tmp_path):
    path = put(tmp_path, "sst.tsv", "sentence\tlabel\ngood\t1\nbad\t0\n")
    assert stops(path, "sst.tsv:1: is no pair") == []


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ("Who?", "qas is 'Who?'; expected a list of questions"),
        (["Who?"], "a question is 'Who?'; expected an object"),
    ],
)
def test_broken_questions(tmp_path, questions, message):
    article = {"title": "A", "paragraphs": [{"context": "x", "qas": questions}]}
    path = put(tmp_path, "s.json", json.dumps({"data": [article]}))
    assert stops(path, f"s.json: item 1: {message}") == []


def test_plain_text_holds_no_pairs(tmp_path):
    with pytest.raises(InputError, match=r"a\.txt is text; expected jsonl, json, csv or tsv"):
        read_pairs(put(tmp_path, "a.txt", "x"))


# judged collections -------------------------------------------------------------------------------


def collection(folder, *qrels):
    put(
        folder,
        "corpus.jsonl.gz",
        gzip.compress(b'{"_id": "1", "title": "T", "text": "one"}\n{"_id": "2", "text": "two"}'),
    )
    put(folder, "queries.jsonl", '{"_id": "a", "text": "A?"}\n{"_id": "b", "text": "B?"}')
    for name in qrels:
        put(folder, name, "query-id\tcorpus-id\tscore\nb\t2\t1\nb\t1\t0\na\t1\t2\n")
    return folder


@pytest.mark.parametrize("qrels", ["qrels.tsv", "qrels/test.tsv"])
def test_a_beir_folder_gives_its_judged_pairs(tmp_path, qrels):
    found = list(read_pairs(collection(tmp_path, qrels)))
    assert found == [
        Pair(query="B?", passage="two", label=1, id="b:2", group="b"),
        Pair(query="B?", passage="one", label=0, title="T", id="b:1", group="b"),
        Pair(query="A?", passage="one", label=2, title="T", id="a:1", group="a"),
    ]
    assert list(read_pairs(tmp_path / qrels)) == found


def test_one_of_several_sets_of_judgments_must_be_named(tmp_path):
    folder = collection(tmp_path, "qrels/test.tsv", "qrels/train.tsv")
    with pytest.raises(InputError) as error:
        read_pairs(folder)
    assert "name one of its files: qrels/test.tsv, qrels/train.tsv" in str(error.value)
    assert len(list(read_pairs(folder / "qrels/train.tsv"))) == 3


def test_judgments_without_texts_are_left_out_and_told(tmp_path):
    folder = collection(tmp_path, "qrels.tsv")
    put(folder, "qrels.tsv", "a\t1\t2\nz\t1\t1\na\t9\t1\n")
    problems = []
    assert [p.id for p in read_pairs(folder, report=problems.append)] == ["a:1"]
    assert [p.message for p in problems] == [
        "1 of 2 queries have no text, such as 'z'",
        "1 of 2 passages have no text, such as '9'",
    ]


def test_a_folder_of_something_else(tmp_path):
    with pytest.raises(InputError, match=r"is a folder without judgments; expected corpus\.jsonl"):
        read_pairs(tmp_path)
    put(tmp_path, "qrels.tsv", "a\t1\t2\n")
    with pytest.raises(
        InputError, match=r"has no corpus\.jsonl with queries\.jsonl; put all three"
    ):
        read_pairs(tmp_path)
