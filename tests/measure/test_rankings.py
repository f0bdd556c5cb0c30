"""Ranking metrics by hand, at their cuts, and against trec_eval's definitions."""

from __future__ import annotations

import numpy as np
import pytest

from decoupled.errors import InputError
from decoupled.lab.study.paired import paired_difference
from decoupled.measure.metrics import (
    kendall,
    mrr,
    ndcg,
    normalised_gain,
    recall,
    reciprocal_rank,
)

RUN = {"a": ["x", "y", "z"], "b": ["z", "x"], "d": ["x"]}
QRELS = {"a": {"z": 1}, "b": {"x": 2, "z": 1, "w": 1}, "c": {"x": 1}, "d": {"x": 0}}
"""`c` is not in the run, `d` has nothing relevant."""


@pytest.mark.parametrize(("k", "expected"), [(1, 1 / 3), (2, 1 / 3), (3, 4 / 9)])
def test_a_relevant_passage_counts_up_to_the_cut(k, expected):
    assert mrr(RUN, QRELS, k) == pytest.approx(expected)


def test_a_rank_below_the_cut_counts_nothing():
    ranked = [0] * 9 + [1]
    assert reciprocal_rank(ranked, 10) == 0.1
    assert reciprocal_rank(ranked, 9) == reciprocal_rank([], 10) == 0.0
    assert reciprocal_rank([-1, 3], 10) == 0.5


def test_recall_and_gain_by_hand():
    assert recall(RUN, QRELS, 1) == pytest.approx((0 + 1 / 3 + 0) / 3)
    assert recall(RUN, QRELS, 10) == pytest.approx((1 + 2 / 3 + 0) / 3)
    discount = 1 / np.log2(np.arange(2, 5))
    third = discount[2]
    graded = (np.array([1, 2]) @ discount[:2]) / (np.array([2, 1, 1]) @ discount)
    assert ndcg(RUN, QRELS, 10) == pytest.approx((third + graded + 0) / 3)
    assert normalised_gain([0, 2], [0, 2], 1) == 0.0
    assert ndcg(RUN, {"d": {"x": 0}}, 10) == mrr({}, {}, 10) == 0.0


def test_kendall_at_its_ends_and_with_ties():
    assert kendall([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert kendall([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert kendall([1, 1, 1], [1, 2, 3]) == 0


def test_a_paired_bootstrap_sees_what_separate_means_hide():
    draw = np.random.default_rng(0)
    hard = draw.random(400)
    a, b = hard + 0.02 + 0.01 * draw.standard_normal(400), hard
    mean, low, high = paired_difference(a, b)
    assert mean == pytest.approx(np.mean(a) - np.mean(b)) and 0.018 < low < mean < high < 0.022
    assert high - low == pytest.approx(2 * 1.96 * np.std(a - b) / 20, rel=0.15), "of 95%"
    assert paired_difference(b, b) == (0.0, 0.0, 0.0)
    _, low, high = paired_difference(draw.permutation(a), b)
    assert low < 0 < high, "without the pairs nothing is seen"
    with pytest.raises(InputError, match=r"shape \(0,\); give one number for each question"):
        paired_difference([], [])
