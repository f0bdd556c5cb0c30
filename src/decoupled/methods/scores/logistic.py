"""Logistic regression: the fit that makes probabilities of scores."""

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.model.scoring import Floats, sigmoid


def fit_logistic(
    features: Floats, right: npt.NDArray[np.bool_], weights: Floats | None = None
) -> Floats:
    """`[F+1]` slopes and the offset of the logistic regression of `[N,F]` features, by Newton's method.

    Judgments are smoothed as Platt does it, so that features that separate them have finite slopes.
    """
    ones = np.ones(len(right)) if weights is None else weights
    good = float(ones[right].sum())
    bad = float(ones.sum()) - good
    if not good or not bad:
        raise InputError(
            "all judgments are alike, so nothing can be learnt from them; give right and wrong ones"
        )
    # Platt (1999): targets (N+ + 1)/(N+ + 2) and 1/(N- + 2) instead of 1 and 0.
    target = np.where(right, (good + 1) / (good + 2), 1 / (bad + 2))
    # Standardised features keep the Newton system well conditioned, whatever their units.
    mean, spread = features.mean(0), np.maximum(features.std(0), 1e-9)
    x = np.column_stack([(features - mean) / spread, np.ones(len(right))])
    fit = np.zeros(x.shape[1])
    for _ in range(100):
        p = sigmoid(x @ fit)
        # The tiny ridge makes the system solvable where a feature is constant.
        slope = x.T @ (ones * (p - target)) + 1e-6 * fit
        curve = (x * (ones * p * (1 - p))[:, None]).T @ x + 1e-6 * np.eye(len(fit))
        step = np.linalg.solve(curve, slope)
        # Steps are cut to length 1: far from the optimum Newton's method would overshoot.
        fit -= step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-8:
            break
    # Back to the units of the features.
    slopes = fit[:-1] / spread
    return np.append(slopes, fit[-1] - slopes @ mean)
