"""Figures as data: what is drawn, not how. The page, the pictures and the CSV files all come from it."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TypeAlias

MARKED = 25
"""Points of a line up to which each has a mark."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A value, with what to say about it beyond its coordinates."""

    x: float
    y: float
    note: str = ""
    spread: float = 0.0
    """Half of the interval around `y` that chance leaves open."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one name, joined by a line or not."""

    name: str
    points: tuple[Point, ...]
    line: bool = True
    dashed: bool = False

    @property
    def marked(self) -> bool:
        """Does each point have a mark? On a long line they would hide it; without one nothing else shows."""
        return not self.line or len(self.points) <= MARKED


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What is along an axis."""

    title: str
    log: bool = False
    whole: bool = False
    """Whole numbers only, such as layers."""
    zero: bool = False
    """Does the axis begin at 0?"""
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A line across the figure at one place, with a word."""

    x: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Series over a numeric axis."""

    name: str
    """Also the name of its files."""
    title: str
    caption: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    commands: tuple[str, ...] = ()

    def rows(self) -> list[tuple[object, ...]]:
        """Header and rows of the values."""
        head = ("series", self.x.title, self.y.title, "note")
        rows: list[tuple[object, ...]] = [head]
        for series in self.series:
            rows += [(series.name, shown(p.x), shown(p.y), p.note) for p in series.points]
        return rows


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar."""

    name: str
    value: float
    note: str = ""
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Values of named things; bars begin at 0, so that their lengths compare."""

    name: str
    title: str
    caption: str
    x: Axis
    bars: tuple[Bar, ...]
    commands: tuple[str, ...] = ()

    def rows(self) -> list[tuple[object, ...]]:
        """Header and rows of the values."""
        head: tuple[object, ...] = ("name", self.x.title, "note")
        return [head, *((bar.name, shown(bar.value), bar.note) for bar in self.bars)]


Figure: TypeAlias = Lines | Bars


@dataclass(frozen=True, kw_only=True)
class Section:
    """Figures that answer one question."""

    title: str
    text: str
    figures: tuple[Figure, ...]


def shown(value: float) -> str:
    """A number as people read it: four digits, no needless ones."""
    if value == 0 or not abs(value) < float("inf"):
        return f"{value:g}"
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def label(value: float) -> str:
    """A tick in few characters: 20k, 1.5M, 0.02."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def to_csv(figure: Figure) -> str:
    """The values of a figure as a CSV file."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in figure.rows():
        writer.writerow([str(cell).replace(",", "") if i else cell for i, cell in enumerate(row)])
    return out.getvalue()
