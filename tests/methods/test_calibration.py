"""Calibration error against cases worked by hand, and the logistic fit against where data came from."""

from __future__ import annotations

import numpy as np
import pytest

from decoupled.errors import InputError
from decoupled.methods.scores.calibration import calibration_error, reliability
from decoupled.methods.scores.logistic import fit_logistic
from decoupled.model.scoring import sigmoid


def test_error_is_the_mean_gap_of_the_bins():
    table = reliability([0.1, 0.1, 0.9, 0.9], [False, True, True, True], bins=2)
    assert [(b.low, b.high, b.count) for b in table] == [(0, 0.5, 2), (0.5, 1, 2)]
    assert [(b.score, b.right) for b in table] == [(pytest.approx(0.1), 0.5), (0.9, 1.0)]
    assert calibration_error(table) == pytest.approx((0.4 + 0.1) / 2)
    third = reliability([1 / 3], [True], bins=3)[0].to_json()
    assert third == {"low": 0.3333, "high": 0.6667, "count": 1, "score": 0.3333, "right": 1.0}


def test_the_bounds_belong_to_bins_and_empty_bins_are_left_out():
    table = reliability([0.0, 1.0, 1.0], [False, True, False])
    assert [(b.low, b.count) for b in table] == [(0.0, 1), (pytest.approx(14 / 15), 2)]
    assert calibration_error(table) == pytest.approx(2 / 3 * 0.5)
    for scores, right in (([], []), ([0.5], [True, False]), ([1.5], [True])):
        with pytest.raises(InputError, match="scores from 0 to 1"):
            reliability(scores, right)


def test_the_fit_finds_the_slopes_that_made_the_data():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(20_000, 2)) * [1.0, 3.0] + [0.0, 5.0]
    right = draw.random(len(x)) < sigmoid(x @ [1.5, -0.4] + 1.0)
    assert fit_logistic(x, right) == pytest.approx([1.5, -0.4, 1.0], abs=0.12)
    p = sigmoid(np.column_stack([x, np.ones(len(x))]) @ fit_logistic(x, right))
    assert calibration_error(reliability(p, right)) < 0.01


def test_weights_count_as_copies_do():
    x, right = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([False, True, False, True])
    twice = fit_logistic(np.concatenate([x, x[2:]]), np.concatenate([right, right[2:]]))
    # The same mean and spread are not needed: only the fit of the weighted points counts.
    assert fit_logistic(x, right, np.array([1.0, 1, 2, 2])) == pytest.approx(twice, abs=1e-4)


def test_separable_and_one_sided_data():
    x = np.array([[0.0], [1.0]])
    assert np.isfinite(fit_logistic(x, np.array([False, True]))).all()
    with pytest.raises(InputError, match="all judgments are alike"):
        fit_logistic(x, np.array([True, True]))
