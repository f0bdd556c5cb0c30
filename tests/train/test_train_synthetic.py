"""Queries that are made of texts."""

from random import Random

import numpy as np
import pytest

from decoupled.train.data.cache import Cache
from decoupled.train.data.synthetic import STOPWORDS, query_from, rarity

TEXT = (
    "The castle stands above the river since 1342. Its tower burned down in the great fire. "
    "A bridge of seven arches leads to the market. Nobody knows who built the northern wall."
)


def test_the_same_seed_makes_the_same_queries_and_another_does_not():
    def made(seed):
        draw = Random(seed)
        return [query_from(TEXT, "Old castle", draw) for _ in range(20)]

    assert made(1) == made(1) != made(2)


def test_every_way_to_make_a_query_is_taken_from_the_text():
    queries, taken = set(), 0
    words = {word.strip(".").lower() for word in TEXT.split()}
    for seed in range(200):
        made = query_from(TEXT, "Old castle", Random(seed))
        assert set(made.query.lower().replace(".", "").split()) <= words | {"old"}
        queries.add(made.query)
        if made.without is not None:
            taken += 1
            assert made.query not in made.without and len(made.without) < len(TEXT)
    assert taken > 20
    assert {"Old castle", "Its tower burned down in the great fire."} <= queries
    assert any(query in TEXT and not query.endswith(".") for query in queries), "words in a row"
    assert query_from("too short", "", Random(0)) is None


def test_keywords_prefer_what_few_texts_hold():
    rare = rarity([TEXT, "the great river", "the great castle", "the great market"])
    assert rare["great"] == pytest.approx(0) and rare["arches"] == pytest.approx(np.log(4))
    texts = [query_from(TEXT, "", Random(seed), rare).query for seed in range(300)]
    chosen = [text.split() for text in texts if text.islower() and text not in TEXT]
    count = lambda word: sum(word in words for words in chosen)  # noqa: E731
    assert chosen and count("arches") > 2 * count("great")
    assert not any(STOPWORDS & set(words) for words in chosen)
    assert {len(words) for words in chosen} == {2, 3, 4, 5, 6}


def test_a_cache_computes_what_is_missing_once(tmp_path):
    made = []

    def make():
        made.append(1)
        if len(made) == 1:
            raise KeyboardInterrupt
        return np.arange(3)

    cache = Cache(tmp_path / "c").at("what", "it", "depends", "on")
    with pytest.raises(KeyboardInterrupt):
        cache.kept("v", make)
    assert [cache.kept("v", make).tolist() for _ in range(2)] == [[0, 1, 2]] * 2 and len(made) == 2
    assert Cache().kept("v", make).tolist() == [0, 1, 2] and len(made) == 3, "nothing is kept"
