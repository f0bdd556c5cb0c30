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


def test_a_cache_goes_on_where_it_stopped(tmp_path):
    made, lines = [], []

    def make(part):
        made.append(part.start)
        if part.start == 4 and len(made) == 3:
            raise KeyboardInterrupt
        return np.arange(part.start, part.stop)

    cache = Cache(tmp_path / "c", lines.append)
    with pytest.raises(KeyboardInterrupt):
        cache.blocks("v", 7, 2, make)
    assert cache.blocks("v", 7, 2, make).tolist() == list(range(7))
    assert made == [0, 2, 4, 4, 6], "what was there is not made again"
    assert {**lines[-1], "seconds": 0} == {"phase": "v", "step": 7, "total": 7, "seconds": 0}
    assert (
        Cache().blocks("v", 3, 2, lambda part: np.ones(part.stop - part.start)).tolist() == [1] * 3
    )
