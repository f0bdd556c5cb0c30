"""The cache of texts holds as many bytes as it says."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest

from decoupled.search.engine import Engine
from decoupled.search.fetch import TextCache

WORDS = ("river", "town", "moon", "sea", "novel", "count", "castle", "house", "old", "star")


@pytest.mark.parametrize("most", [6, 300])
def test_what_is_counted_is_what_is_held(model, most):
    engine, draw = Engine(model("bert", "rank")), random.Random(0)
    engine.rerank("river", texts=["warm"])

    def texts(count):
        return [" ".join(draw.choices(WORDS, k=draw.randint(1, most))) for _ in range(count)]

    engine.text_cache = TextCache(64 << 20)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            engine.rerank("river", texts=texts(80))
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.7 * held < engine.text_cache.bytes < 1.8 * held


def test_it_stays_within_its_limit(model):
    engine, draw = Engine(model("bert", "rank"), remember=200_000), random.Random(1)
    for _ in range(20):
        engine.rerank("river", texts=[" ".join(draw.choices(WORDS, k=20)) for _ in range(20)])
    cache = engine.text_cache
    assert cache is not None and 100_000 < cache.bytes <= 200_000
    assert cache.bytes == sum(text.size for text in cache._texts.values())
