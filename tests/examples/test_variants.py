"""Queries as people type them."""

from random import Random

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
