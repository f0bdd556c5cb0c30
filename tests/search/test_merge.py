"""What a person sees of answers: equal ones once, with their evidence; no fillers."""

from __future__ import annotations

import pytest

from decoupled.search.answers import is_filler, merge
from decoupled.search.results import Answer


def answer(text, score, passage_id="p", **rest):
    passage = f"So {text} it is."
    return Answer(
        text=text,
        score=score,
        passage_id=passage_id,
        passage=passage,
        start=3,
        end=3 + len(text),
        **rest,
    )


def test_equal_answers_are_one_with_every_place_and_the_summed_weight():
    found = merge(
        [
            answer("Bram Stoker", 0.3, "a"),
            answer("Mary Shelley", 0.35, "b"),
            answer("the bram stoker.", 0.2, "c"),
        ],
        3,
    )
    assert [(a.text, a.score) for a in found] == [("Bram Stoker", 0.5), ("Mary Shelley", 0.35)]
    assert [(e.passage_id, e.score) for e in found[0].evidence] == [("a", 0.3), ("c", 0.2)]
    for e in found[0].evidence:
        assert e.passage[e.start : e.end].lower().strip(".").endswith("bram stoker")
    assert found[0].passage_id == "a" and found[0].passage[3:14] == "Bram Stoker"


def test_a_calibrated_score_is_shared_out_among_the_places():
    (found,) = merge([answer("Bram Stoker", 0.3, "a"), answer("bram stoker", 0.1, "c")], 1)
    scaled = found.scaled(0.8)
    assert [e.score for e in scaled.evidence] == pytest.approx([0.6, 0.2])
    assert [e.score for e in answer("x", 0.0, evidence=found.evidence).scaled(0.5).evidence] == [
        0,
        0,
    ]


def test_k_counts_merged_answers():
    many = [
        answer("x1", 0.2, "a"),
        answer("x1", 0.2, "b"),
        answer("y1", 0.3, "c"),
        answer("z1", 0.1, "d"),
    ]
    assert [a.text for a in merge(many, 2)] == ["x1", "y1"]


@pytest.mark.parametrize("text", ["by", "The", "of the", "—", "...", "at which", "its"])
def test_fillers_are_no_answers(text):
    assert is_filler(text) and merge([answer(text, 0.9)], 3) == []


@pytest.mark.parametrize("text", ["WHO", "A", "May", "Will", "5", "IT", "by Bram", "C", "不", "US"])
def test_names_and_numbers_are_answers(text):
    assert not is_filler(text) and len(merge([answer(text, 0.9)], 3)) == 1


def test_an_answer_says_its_document_and_place():
    meta = {"document": "manual/limits.html", "start": 100, "end": 400}
    placed = answer(
        "1600", 0.5, "manual/limits.html#columns/1", title="Limits › Columns", meta=meta, offset=7
    )
    assert placed.document == "manual/limits.html" and placed.place == (110, 114)
    (found,) = merge([placed], 1)
    (evidence,) = found.to_json()["evidence"]
    assert evidence["title"] == "Limits › Columns" and evidence["meta"] == meta
    plain = answer("x1", 0.1, "p7")
    assert plain.document == "p7" and plain.place is None
