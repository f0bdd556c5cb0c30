"""The span decoder against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from decoupled.model.states import Ragged
from decoupled.search.answers import best_spans, window_scores


def brute(logits, before, after, max_tokens):
    tokens = len(logits)
    return sorted(
        (
            (float(logits[i, 0]) + float(logits[j, 1]), i, j)
            for i in range(before, tokens - after)
            for j in range(i, min(i + max_tokens, tokens - after))
        ),
        reverse=True,
    )


@pytest.mark.parametrize("seed", range(5))
def test_best_span_is_the_brute_force_best(seed):
    logits = np.random.default_rng(seed).normal(size=(40, 2)).astype(np.float32)
    score, first, last = brute(logits, 1, 2, 8)[0]
    best, *span = best_spans(logits, before=1, after=2, max_tokens=8)[0]
    assert span == [first, last]
    assert best == pytest.approx(score)


def test_more_spans_are_the_best_that_do_not_overlap():
    logits = np.random.default_rng(9).normal(size=(30, 2)).astype(np.float32)
    expected: list[tuple[int, int]] = []
    for _, i, j in brute(logits, 0, 1, 6):
        if all(j < a or i > b for a, b in expected):
            expected.append((i, j))
    got = [tuple(span) for _, *span in best_spans(logits, before=0, after=1, k=4, max_tokens=6)]
    assert got == expected[:4]


def test_special_tokens_are_never_part_of_an_answer():
    logits = np.zeros((10, 2), np.float32)
    logits[0] = logits[-1] = 100
    for _, first, last in best_spans(logits, before=1, after=1, k=3):
        assert 1 <= first <= last <= 8


def test_a_passage_without_tokens_has_no_answer():
    assert best_spans(np.zeros((1, 2), np.float32), before=0, after=1) == []


def test_all_windows_at_once_equal_one_by_one():
    draw = np.random.default_rng(3)
    lengths = np.array([12, 3, 40, 2])
    logits = Ragged(draw.normal(size=(lengths.sum(), 2)).astype(np.float32), lengths)
    best, total, null = window_scores(logits, before=0, after=1, max_tokens=7)
    for number in range(len(lengths)):
        rows = logits[number]
        spans = brute(rows[1:], 0, 1, 7)
        values = np.array([s[0] for s in spans])
        assert null[number] == pytest.approx(float(rows[0].sum()), rel=1e-6)
        if len(values):
            assert best[number] == pytest.approx(values[0], rel=1e-6)
            assert total[number] == pytest.approx(np.log(np.exp(values).sum()), rel=1e-6)
        else:
            assert best[number] == total[number] == -np.inf
