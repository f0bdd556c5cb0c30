"""Queries as people type them, and what BM25 finds for them."""

from random import Random

from bm25 import Bm25
from variants import keywords, mistyped, variants


def test_queries_as_people_type_them():
    assert variants("Who built it?", Random(1)) == variants("Who built it?", Random(1))
    clean, bare, typo = variants("Who built the northern wall?", Random(3))
    assert clean == "Who built the northern wall?"
    assert {variants(clean, Random(s))[1] for s in range(9)} == {
        "who built the northern wall",
        "built northern wall",
    }
    assert typo != bare and "?" not in typo
    assert keywords("who is it") == "who is it", "nothing would be left"
    for seed in range(50):
        wrong = mistyped("northern wall", Random(seed)).split()
        assert (len(wrong) == 2 and wrong != ["northern", "wall"]) or "wall" in wrong


def test_bm25_finds_the_same_on_its_own_and_in_a_batch():
    texts = [
        "a bridge and a river in a town of many bridges and houses",
        "a river",
        "the bridge over the river",
        "x y z",
    ]
    index = Bm25(texts)
    found = index.top(["bridge river", "nothing here", "z"], 3)
    assert found.tolist() == [[2, 0, 1], [-1, -1, -1], [3, -1, -1]]
    assert index.best("bridge river", 2) == [2, 0]
