"""Figures drawn by matplotlib: SVG inside a page, and PNG or SVG files."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from decoupled.errors import MissingDependency
from decoupled.lab.report.figure import Bars, Figure, Lines, label, shown

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B")
"""Okabe and Ito's colours, which people of all kinds of colour vision tell apart."""
MARKERS = ("o", "s", "^", "D")
BESIDE, MARKED = 8, 25
"""Series from which the legend stands beside the figure, and points up to which each of a line has a mark."""
INK = "#0b0b0b"
"""Colour of text and axes; inside a page it becomes the page's own, which may be light on dark."""


def svg(figure: Figure) -> str:
    """The `<svg>` element of a figure without its title, for a page."""
    file = io.BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # Names of clips and markers must differ between the figures of a page, and not between two runs.
    with _style(**{"svg.hashsalt": figure.name, "svg.fonttype": "none"}):
        _canvas([figure], titled=False).savefig(
            file, format="svg", transparent=True, metadata=nothing
        )
    element = file.getvalue().decode()
    element = element[element.index("<svg") :].replace(INK, "currentColor")
    name = escape(figure.title, quote=True)
    return element.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def save(figures: Figure | Sequence[Figure], path: Path) -> None:
    """Write one figure, or several below each other, as the ending of the path says: .png or .svg."""
    drawn = [figures] if isinstance(figures, Figure) else list(figures)
    if path.suffix == ".svg" and len(drawn) == 1:
        path.write_text(svg(drawn[0]), encoding="utf-8")
        return
    with _style():
        _canvas(drawn).savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)


@contextmanager
def _style(**settings: str) -> Iterator[None]:
    try:
        import matplotlib
    except ImportError:
        raise MissingDependency("matplotlib", "plots") from None
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    every: Any = {**dict.fromkeys(inked, INK), **settings}
    with matplotlib.rc_context(every):
        yield


def _canvas(figures: Sequence[Figure], *, titled: bool = True) -> Any:
    """The figures below each other. Not through pyplot, which would keep them and choose a window."""
    from matplotlib.figure import Figure as Canvas

    widths, heights = zip(*map(_size, figures), strict=True)
    canvas = Canvas(figsize=(max(widths), sum(heights)), dpi=110, layout="constrained")
    rows = canvas.subplots(len(figures), 1, height_ratios=heights, squeeze=False)[:, 0]
    for figure, axes in zip(figures, rows, strict=True):
        # Beside the names of bars there is more room to the left; marks stand above the axes.
        side, pad = "right", 8
        if isinstance(figure, Lines):
            side, pad = "left", 18 if figure.marks else 8
            _lines(figure, axes)
        elif isinstance(figure, Bars):
            _bars(figure, axes)
        if titled:
            axes.set_title(figure.title, fontsize=11, loc=side, pad=pad)
        axes.spines[["top", "right"]].set_visible(False)
    return canvas


def _size(figure: Figure) -> tuple[float, float]:
    """Width and height in inches."""
    if isinstance(figure, Bars):
        return 7.2, 0.9 + 0.36 * len(figure.bars)
    if isinstance(figure, Lines) and len(figure.series) > BESIDE:
        return 10.2, max(4.3, 0.6 + 0.17 * len(figure.series))
    return 7.2, 4.3


def _lines(figure: Lines, axes: Any) -> None:
    for number, series in enumerate(figure.series):
        colour = COLOURS[number % len(COLOURS)]
        marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
        axes.errorbar(
            [p.x for p in series.points],
            [p.y for p in series.points],
            [p.spread for p in series.points] if any(p.spread for p in series.points) else None,
            color=colour,
            marker=marker if not series.line or len(series.points) <= MARKED else None,
            markersize=5,
            linestyle=("--" if series.dashed else "-") if series.line else "none",
            label=series.name,
        )
    for mark in figure.marks:
        axes.axvline(mark.x, color="0.5", linestyle=":", linewidth=1)
        axes.text(
            mark.x, 1.0, mark.text, transform=axes.get_xaxis_transform(), va="bottom", fontsize=7.5
        )
    points = [point for series in figure.series for point in series.points]
    _scale(axes, figure, points)
    axes.set_xlabel(figure.x.title)
    axes.set_ylabel(figure.y.title)
    axes.grid(axis="y", alpha=0.25)
    if len(figure.series) > BESIDE:
        axes.figure.legend(fontsize=7, frameon=False, loc="outside right upper")
    elif len(figure.series) > 1:
        axes.legend(fontsize=8, frameon=False)


def _scale(axes: Any, figure: Lines, points: Sequence[Any]) -> None:
    """Logarithmic axes with round ticks, axes that begin at 0, and axes of whole numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name, axis, values in (
        ("x", figure.x, [p.x for p in points]),
        ("y", figure.y, [p.y for p in points]),
    ):
        drawn = getattr(axes, f"{name}axis")
        if axis.log and any(value > 0 for value in values):
            getattr(axes, f"set_{name}scale")("log")
            least = min(value for value in values if value > 0)
            narrow = max(values) / least < 1000
            drawn.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
            drawn.set_major_formatter(FuncFormatter(lambda value, _: label(value)))
            drawn.set_minor_formatter(NullFormatter())
        elif axis.zero:
            getattr(axes, f"set_{name}lim")(0)
    if figure.x.whole:
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(positions := {p.x for p in points}) == 1:
            axes.set_xlim(min(positions) - 0.5, min(positions) + 0.5)


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
