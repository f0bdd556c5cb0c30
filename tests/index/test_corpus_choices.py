"""RACE's layout: questions with options, one a row or many."""

import json

import pytest

from corpora import both_ways, put
from decoupled.measure.pairs import read_pairs

ONE = {"article": "A tale.", "question": "Who _ ?", "options": ["a", "b", "c"], "answer": "B"}
MANY = {
    "id": "middle1.txt",
    "article": "A tale.",
    "questions": ["Who _ ?", "Why?"],
    "options": [["a", "b"], ["c", "d"]],
    "answers": ["A", 1],
}


def test_a_question_is_a_group_with_one_right_option(tmp_path):
    found = list(read_pairs(put(tmp_path, "race.jsonl", json.dumps(ONE))))
    assert [pair.query for pair in found] == ["Who  a  ?", "Who  b  ?", "Who  c  ?"]
    assert [pair.label for pair in found] == [0, 1, 0]
    assert {pair.group for pair in found} == {"race.jsonl:1"}
    assert {pair.passage for pair in found} == {"A tale."}
    assert len({pair.id for pair in found}) == 3


def test_lists_of_questions_share_their_article(tmp_path):
    found = list(read_pairs(put(tmp_path, "race.json", json.dumps([MANY, ONE]))))
    groups = ["race.json:1:1"] * 2 + ["race.json:1:2"] * 2 + ["race.json:2"] * 3
    assert [pair.group for pair in found] == groups
    assert [pair.query for pair in found[2:4]] == ["Why? c", "Why? d"]
    assert [pair.label for pair in found] == [1, 0, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": "D"}, "r.jsonl:1: the answer is 'D'; expected a letter A..C or 0..2"),
        ({"answer": True}, "the answer is True; expected a letter"),
        ({"options": "a b"}, "options is 'a b'; expected a list of two texts or more"),
        ({"options": ["a", 3]}, "the option is 3; expected a text"),
        ({"article": None}, "the article is None; expected a text"),
        ({"questions": ["x"]}, "questions, options and answers are not lists of one length"),
    ],
)
def test_broken_rows_are_named(tmp_path, change, message):
    path = put(tmp_path, "r.jsonl", f"{json.dumps({**ONE, **change})}\n{json.dumps(ONE)}")
    ids, _ = both_ways(path, message, read_pairs)
    assert ids[-3:] == ["r.jsonl:2:0", "r.jsonl:2:1", "r.jsonl:2:2"]
