"""Whether two systems differ by more than chance, over the same questions."""

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError


def paired_difference(
    a: npt.ArrayLike, b: npt.ArrayLike, *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float, float]:
    """Mean of a - b over the same questions, with the interval of 95% that a paired bootstrap gives it."""
    apart = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    if apart.ndim != 1 or not len(apart):
        raise InputError(
            f"scores of shape {apart.shape}; give one number for each question, and at least one"
        )
    draw = np.random.default_rng(seed)
    # Questions are drawn with replacement, the same ones for both systems.
    means = [apart[draw.integers(len(apart), size=len(apart))].mean() for _ in range(resamples)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(apart.mean()), float(low), float(high)
