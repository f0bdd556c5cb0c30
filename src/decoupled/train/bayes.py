"""Bayesian search over a grid: a Gaussian process of what was tried says what to try next.

A Matérn-5/2 kernel with a length of its own for each axis, chosen with the noise by marginal likelihood; the
next point is the one with the largest expected improvement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Point = tuple[int, ...]
"""A place on each axis of a grid, counted from 0."""

RANDOM = 3
"""Points that are drawn before the process is asked, beside those that were given."""
LENGTHS = (0.15, 0.3, 0.6, 1.2, 3.0)
NOISES = (1e-3, 1e-2, 1e-1, 0.5)
CANDIDATES = 2000


def next_point(sizes: Sequence[int], known: Mapping[Point, float], given: int, seed: int) -> Point:
    """A point of the grid that is not known yet; the first `given` of the known ones were not drawn."""
    draw = np.random.default_rng([seed, len(known)])
    drawn = {tuple(map(int, row)) for row in draw.integers(0, sizes, (CANDIDATES, len(sizes)))}
    if len(known) >= given + RANDOM:
        drawn |= _around(max(known, key=lambda point: known[point]), sizes)
    free = sorted(drawn - set(known))
    if len(known) < given + RANDOM:
        return free[int(draw.integers(len(free)))]
    scale = np.maximum(np.asarray(sizes) - 1, 1)
    tried, values = np.asarray(list(known)) / scale, np.asarray(list(known.values()))
    return free[int(_improvement(tried, values, np.asarray(free) / scale).argmax())]


def _around(best: Point, sizes: Sequence[int]) -> set[Point]:
    """The point's neighbours, one or two steps along one axis."""
    found = set()
    for axis, size in enumerate(sizes):
        for step in (-2, -1, 1, 2):
            if 0 <= best[axis] + step < size:
                found.add((*best[:axis], best[axis] + step, *best[axis + 1 :]))
    return found


def _improvement(tried: Floats, values: Floats, candidates: Floats) -> Floats:
    """Expected improvement of each candidate over the best value so far."""
    spread = float(values.std()) or 1.0
    y = (values - values.mean()) / spread
    lengths, noise = _fitted(tried, y)
    factor = np.linalg.cholesky(_kernel(tried, tried, lengths) + noise * np.eye(len(y)))
    across = np.linalg.solve(factor, _kernel(tried, candidates, lengths))
    mean = across.T @ np.linalg.solve(factor, y)
    deviation = np.sqrt(np.maximum(1 - (across**2).sum(0), 1e-12))
    z = (mean - y.max()) / deviation
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    below = np.asarray([math.erfc(-value / math.sqrt(2)) / 2 for value in z])
    return np.asarray(deviation * (z * below + density), np.float64)


def _fitted(tried: Floats, y: Floats) -> tuple[Floats, float]:
    """Lengths and noise with the largest marginal likelihood, one axis after the other, twice."""
    lengths, noise = np.full(tried.shape[1], 0.6), 1e-2
    for _ in range(2):
        noise = max(NOISES, key=lambda n: _likelihood(tried, y, lengths, n))
        for axis in range(len(lengths)):
            options = [np.where(np.arange(len(lengths)) == axis, one, lengths) for one in LENGTHS]
            lengths = max(options, key=lambda one: _likelihood(tried, y, one, noise))
    return lengths, noise


def _likelihood(tried: Floats, y: Floats, lengths: Floats, noise: float) -> float:
    factor = np.linalg.cholesky(_kernel(tried, tried, lengths) + noise * np.eye(len(y)))
    return float(-(np.linalg.solve(factor, y) ** 2).sum() / 2 - np.log(np.diag(factor)).sum())


def _kernel(a: Floats, b: Floats, lengths: Floats) -> Floats:
    """Matérn-5/2."""
    apart = (((a[:, None] - b[None]) / lengths) ** 2).sum(-1)
    r = np.sqrt(5 * apart)
    return np.asarray((1 + r + r**2 / 3) * np.exp(-r), np.float64)
