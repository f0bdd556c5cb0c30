"""The same figures as PNG files, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoupled.errors import MissingDependency
from decoupled.lab.report.figure import Axis, Bars, Figure, Lines, shown
from decoupled.lab.report.svg import COLOURS, scale, shape_of

SHAPES = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D"}
BESIDE = 8
"""Series from which the legend stands beside the figure, which it would hide."""


def save_png(figure: Figure | Sequence[Figure], path: Path) -> None:
    """Write one figure, or several below each other; needs the extra `plots`."""
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise MissingDependency("matplotlib", "plots") from None
    drawn = [figure] if isinstance(figure, Lines | Bars) else list(figure)
    sizes = [_size(one) for one in drawn]
    heights = [height for _, height in sizes]
    # Not through pyplot, which would keep the figure and choose a window.
    canvas = Canvas(
        figsize=(max(width for width, _ in sizes), sum(heights)), dpi=110, layout="constrained"
    )
    panels = canvas.subplots(len(drawn), 1, height_ratios=heights, squeeze=False)[:, 0]
    for one, axes in zip(drawn, panels, strict=True):
        if isinstance(one, Lines):
            _lines(one, axes)
        else:
            _bars(one, axes)
        marked = isinstance(one, Lines) and one.marks
        # Beside the names of bars there is more room to the left.
        side = "right" if isinstance(one, Bars) else "left"
        axes.set_title(one.title, fontsize=11, loc=side, pad=18 if marked else 8)
        axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path, metadata={"Software": None})


def _size(figure: Figure) -> tuple[float, float]:
    """Inches."""
    if isinstance(figure, Bars):
        return 7.2, 0.9 + 0.36 * len(figure.bars)
    if len(figure.series) > BESIDE:
        return 10.2, max(4.3, 0.6 + 0.17 * len(figure.series))
    return 7.2, 4.3


def _lines(figure: Lines, axes: Any) -> None:
    points = [point for series in figure.series for point in series.points]
    for number, series in enumerate(figure.series):
        axes.plot(
            [p.x for p in series.points],
            [p.y for p in series.points],
            color=COLOURS[number % len(COLOURS)],
            marker=SHAPES[shape_of(number)] if series.marked else None,
            markersize=5,
            linestyle=("--" if series.dashed else "-") if series.line else "none",
            label=series.name,
        )
        open_ = [p for p in series.points if p.spread]
        axes.errorbar(
            [p.x for p in open_],
            [p.y for p in open_],
            [p.spread for p in open_],
            fmt="none",
            ecolor=COLOURS[number % len(COLOURS)],
            alpha=0.5,
        )
    for mark in figure.marks:
        axes.axvline(mark.x, color="0.4", linestyle=":", linewidth=1)
        where = {"x": mark.x, "y": 1.0, "va": "bottom", "rotation": 0, "fontsize": 7.5}
        axes.text(s=mark.text, transform=axes.get_xaxis_transform(), **where)
    if figure.x.log:
        axes.set_xscale("log")
        _round_ticks(axes.xaxis, figure.x, [p.x for p in points], length=600)
    if figure.y.log and any(p.y > 0 for p in points):
        axes.set_yscale("log")
        _round_ticks(axes.yaxis, figure.y, [p.y for p in points], length=350)
    elif figure.y.zero:
        axes.set_ylim(bottom=0)
    if figure.x.whole:
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(places := {p.x for p in points}) == 1:
            axes.set_xlim(min(places) - 0.5, min(places) + 0.5)
    axes.set_xlabel(figure.x.title)
    axes.set_ylabel(figure.y.title)
    axes.grid(axis="y", alpha=0.25)
    if len(figure.series) > BESIDE:
        axes.figure.legend(fontsize=7, frameon=False, loc="outside right upper")
    elif len(figure.series) > 1:
        axes.legend(fontsize=8, frameon=False)


def _bars(figure: Bars, axes: Any) -> None:
    groups = list(dict.fromkeys(bar.group for bar in figure.bars))
    colours = [COLOURS[groups.index(bar.group) % len(COLOURS)] for bar in figure.bars]
    drawn = axes.barh(
        [bar.name for bar in figure.bars], [bar.value for bar in figure.bars], color=colours
    )
    words = [f" {shown(bar.value)}{figure.x.unit}" for bar in figure.bars]
    axes.bar_label(drawn, labels=words, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(figure.x.title)
    axes.margins(x=0.15)
    axes.grid(axis="x", alpha=0.25)


def _round_ticks(drawn: Any, axis: Axis, values: Sequence[float], *, length: float) -> None:
    """The ticks of the page on a logarithmic axis, instead of powers of ten."""
    start, end = (0.0, length) if drawn.axis_name == "x" else (length, 0.0)
    ticks = scale(axis, values, start=start, end=end).ticks
    drawn.set_ticks(ticks, labels=[shown(tick) for tick in ticks])
    drawn.set_minor_formatter(lambda value, place: "")
