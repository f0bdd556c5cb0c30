"""Figures as data: what is drawn, not how. The page, the pictures and the CSV files all come from it."""

import csv
import io
from dataclasses import dataclass


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
class Figure:
    """What every figure has."""

    name: str
    """Also the name of its files."""
    title: str
    caption: str
    x: Axis
    commands: tuple[str, ...] = ()

    def rows(self) -> list[tuple[object, ...]]:
        """Header and rows of the values."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Lines(Figure):
    """Series over a numeric axis."""

    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()

    def rows(self) -> list[tuple[object, ...]]:
        """A row for each point."""
        every = ((series.name, point) for series in self.series for point in series.points)
        head = ("series", self.x.title, self.y.title, "note")
        return [head, *((name, shown(p.x), shown(p.y), p.note) for name, p in every)]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar."""

    name: str
    value: float
    note: str = ""
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Bars(Figure):
    """Values of named things; bars begin at 0, so that their lengths compare."""

    bars: tuple[Bar, ...]

    def rows(self) -> list[tuple[object, ...]]:
        """A row for each bar."""
        head = ("name", self.x.title, "note")
        return [head, *((bar.name, shown(bar.value), bar.note) for bar in self.bars)]


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
