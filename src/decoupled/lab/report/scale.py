"""From values to places: ranges, ticks and their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from decoupled.lab.report.figure import Axis

TICK_ROOM = {"across": 32.0, "up": 16.0}
"""Least distance of two ticks, so that their labels stand apart."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps values from `low..high` to places from `start..end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high, at = self.low, self.high, value
        if self.log:
            # There is no 0 on such a scale: it stands at the edge.
            low, high, at = math.log10(low), math.log10(high), math.log10(max(value, low))
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def scale(axis: Axis, values: Sequence[float], *, start: float, end: float) -> Scale:
    """A scale that shows all values, with ticks at round ones."""
    shown = [value for value in values if value > 0 or not axis.log]
    low, high = (min(shown), max(shown)) if shown else (0.1, 1.0)
    if axis.log:
        # Half a decade at least, so that a few close values still get ticks.
        low, high = 10 ** (math.floor(math.log10(low) * 2) / 2), high * 1.15
        low = min(low, high / 4)
        ticks = _log_ticks(
            low, high, room=TICK_ROOM["across" if start < end else "up"], length=abs(end - start)
        )
    else:
        if axis.zero:
            low = min(low, 0.0)
        if high == low:
            high = low + 1
        step = _step(high - low, whole=axis.whole)
        if not axis.whole:
            low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        first = math.ceil(low / step) * step
        count = math.floor((high - first) / step + 1e-6) + 1
        ticks = tuple(round(first + n * step, 10) for n in range(count))
    return Scale(low=low, high=high, start=start, end=end, log=axis.log, ticks=ticks)


def _step(span: float, *, whole: bool, about: int = 6) -> float:
    raw = span / about
    base = 10 ** math.floor(math.log10(raw))
    step = next(m * base for m in (1, 2, 5, 10) if m * base >= raw * 0.999)
    return max(1.0, round(step)) if whole else step


def _log_ticks(low: float, high: float, *, length: float, room: float) -> tuple[float, ...]:
    """1, 2 and 5 of up to three decades where there is room for them, else 1 alone."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))

    def within(*steps: int) -> tuple[float, ...]:
        found = (m * 10.0**e for e in range(first, last + 1) for m in steps)
        return tuple(t for t in found if low * 0.999 <= t <= high * 1.001)

    apart = math.log10(2) * length / math.log10(high / low)
    coarse = within(1)
    fine = (last - first <= 3 and apart >= room) or len(coarse) < 2
    return within(1, 2, 5) if fine else coarse


def label(value: float) -> str:
    """A tick in few characters: 20k, 1.5M, 0.02."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
