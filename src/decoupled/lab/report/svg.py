"""Figures as SVG inside a page. Text takes the page's colour; series differ in colour and in shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from decoupled.lab.report.figure import Axis, Bars, Figure, Lines, Point, Series, shown

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B")
"""Okabe and Ito's colours, which people of all kinds of colour vision tell apart."""
WIDTH, HEIGHT = 600, 340
LEFT, RIGHT, BOTTOM = 62, 14, 54
SHAPES = ("circle", "square", "triangle", "diamond")
LETTER = 7.0
"""Width of an average letter of a legend."""
TICK_ROOM = {"across": 32.0, "up": 16.0}
"""Least distance of two ticks, so that their labels stand apart."""


def shape_of(number: int) -> str:
    """The shape of a series: another one each time the colours come round."""
    return SHAPES[(number + number // len(COLOURS)) % len(SHAPES)]


def draw(figure: Figure) -> str:
    """The whole `<svg>` element of a figure."""
    body, height = _lines(figure) if isinstance(figure, Lines) else _bars(figure)
    name = escape(figure.title, quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}" '
        f'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif" font-size="13">'
        f"{''.join(body)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", **more: object) -> str:
    extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor"{extra}>'
        f"{escape(text)}</text>"
    )


def _rule(x1: float, y1: float, x2: float, y2: float, opacity: float, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        f'stroke-opacity="{opacity}"{dashed}/>'
    )


# Lines --------------------------------------------------------------------------------------------


def _lines(figure: Lines) -> tuple[list[str], int]:
    legend, top = _legend([series.name for series in figure.series])
    top += 16 * len(figure.marks)
    height = HEIGHT + top
    bottom = height - BOTTOM
    points = [p for series in figure.series for p in series.points]
    across = [p.x for p in points] + [m.x for m in figure.marks]
    x = scale(figure.x, across, start=LEFT + 12, end=WIDTH - RIGHT - 12)
    reached = [p.y + side * p.spread for p in points for side in (-1, 1)]
    y = scale(figure.y, reached, start=bottom, end=top + 10)
    body = [*legend, *_grid(figure, x, y, top, bottom)]
    for number, mark in enumerate(figure.marks):
        place = x(mark.x)
        body.append(_rule(place, top, place, bottom, 0.55, "3 4"))
        anchor = "start" if place < WIDTH - 190 else "end"
        shift = 4 if anchor == "start" else -4
        body.append(_text(place + shift, top - 4 - 16 * number, mark.text, anchor, font_size=12))
    for number, series in enumerate(figure.series):
        body += _series(figure, series, number, x, y)
    return body, height


def _grid(figure: Lines, x: Scale, y: Scale, top: float, bottom: float) -> Iterator[str]:
    for tick in y.ticks:
        yield _rule(LEFT, y(tick), WIDTH - RIGHT, y(tick), 0.13)
        yield _text(LEFT - 8, y(tick) + 4, label(tick), "end")
    for tick in x.ticks:
        yield _rule(x(tick), bottom, x(tick), bottom + 5, 0.5)
        yield _text(x(tick), bottom + 19, label(tick), "middle")
    yield _rule(LEFT, bottom, WIDTH - RIGHT, bottom, 0.5)
    yield _text((LEFT + WIDTH - RIGHT) / 2, bottom + 42, figure.x.title, "middle", font_weight=600)
    middle = (top + bottom) / 2
    turn = f"rotate(-90 16 {middle:.1f})"
    yield _text(16, middle, figure.y.title, "middle", transform=turn, font_weight=600)


def _series(figure: Lines, series: Series, number: int, x: Scale, y: Scale) -> Iterator[str]:
    colour = COLOURS[number % len(COLOURS)]
    places = [(x(p.x), y(p.y)) for p in series.points]
    if series.line and len(places) > 1:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        dash = ' stroke-dasharray="7 5"' if series.dashed else ""
        yield (
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2" '
            f'stroke-linejoin="round"{dash}/>'
        )
    for point, (a, b) in zip(series.points, places, strict=True):
        if point.spread:
            ends = y(point.y - point.spread), y(point.y + point.spread)
            yield f'<g color="{colour}">{_rule(a, ends[0], a, ends[1], 0.5)}</g>'
        mark = _shape(number, a, b, colour) if series.marked else ""
        yield (
            f'<g class="point" tabindex="0" data-tip="{_tip(figure, series.name, point)}">{mark}'
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{11 if series.marked else 7}" fill="transparent"/></g>'
        )


def _tip(figure: Lines, name: str, point: Point) -> str:
    lines = [
        name,
        f"{figure.x.title}: {shown(point.x)}{figure.x.unit}",
        f"{figure.y.title}: {shown(point.y)}{figure.y.unit}",
    ]
    lines += [point.note] if point.note else []
    return escape("\n".join(lines), quote=True).replace("\n", "&#10;")


def _shape(number: int, x: float, y: float, colour: str) -> str:
    match shape_of(number):
        case "circle":
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>'
        case "square":
            return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{colour}"/>'
        case "triangle":
            corners = [(0.0, -5.5), (5.0, 4.0), (-5.0, 4.0)]
        case _:
            corners = [(0.0, -6.0), (6.0, 0.0), (0.0, 6.0), (-6.0, 0.0)]
    path = " ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in corners)
    return f'<polygon points="{path}" fill="{colour}"/>'


def _legend(names: Sequence[str]) -> tuple[list[str], int]:
    """Names with their shapes, in as many rows as they need; and where the figure may begin."""
    if len(names) < 2:
        return [], 8
    body, x, y = [], float(LEFT), 14.0
    for number, name in enumerate(names):
        width = 26 + LETTER * len(name)
        if x + width > WIDTH - RIGHT and x > LEFT:
            x, y = float(LEFT), y + 20
        body.append(_shape(number, x + 5, y - 4, COLOURS[number % len(COLOURS)]))
        body.append(_text(x + 15, y, name))
        x += width
    return body, int(y) + 14


# Bars ---------------------------------------------------------------------------------------------


def _squeezed(text: str, room: float) -> dict[str, object]:
    """Attributes that make a long text fit into its room."""
    if LETTER * len(text) <= room:
        return {}
    return {"textLength": f"{room:.0f}", "lengthAdjust": "spacingAndGlyphs"}


def _bars(figure: Bars) -> tuple[list[str], int]:
    longest = max(len(bar.name) for bar in figure.bars)
    left = min(300.0, 20 + LETTER * longest)
    step, top = 30, 12
    bottom = top + step * len(figure.bars)
    values = [bar.value for bar in figure.bars]
    x = scale(replace(figure.x, zero=True), values, start=left, end=WIDTH - 110)
    body = []
    for tick in x.ticks:
        body.append(_rule(x(tick), top, x(tick), bottom, 0.13))
        body.append(_text(x(tick), bottom + 18, label(tick), "middle"))
    groups = list(dict.fromkeys(bar.group for bar in figure.bars))
    for number, bar in enumerate(figure.bars):
        y, end = top + step * number + 5, x(bar.value)
        colour = COLOURS[groups.index(bar.group) % len(COLOURS)]
        text = f"{shown(bar.value)}{figure.x.unit}"
        tip = escape("\n".join(filter(None, (bar.name, text, bar.note))), quote=True)
        tip = tip.replace("\n", "&#10;")
        body.append(
            f'<g class="point" tabindex="0" data-tip="{tip}"><rect x="{left:.1f}" y="{y}" '
            f'width="{max(1.5, end - left):.1f}" height="20" rx="3" fill="{colour}"/></g>'
        )
        body.append(_text(left - 8, y + 14, bar.name, "end", **_squeezed(bar.name, left - 12)))
        body.append(_text(end + 6, y + 14, text))
    middle = (left + WIDTH - 110) / 2
    body.append(_text(middle, bottom + 40, figure.x.title, "middle", font_weight=600))
    return body, bottom + 52


# From values to places: ranges, ticks and their labels ---------------------------------------------


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
