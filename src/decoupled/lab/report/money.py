"""Figures of storage and money, and of races against peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from decoupled.errors import OptionError
from decoupled.lab.bench.report import figures
from decoupled.lab.cost import Demand, Prices, Storage, break_even, curve
from decoupled.lab.report.draw import save
from decoupled.lab.report.figure import Axis, Bar, Bars, Lines, Mark, Point, Section, Series, shown
from decoupled.lab.report.sources import Json


def cost_sections(costs: Sequence[Json]) -> list[Section]:
    """Bytes by codec, and money by queries a day, of each computed cost."""
    return [_cost(cost) for cost in costs]


def _cost(cost: Json) -> Section:
    even = break_even(Demand(**cost["demand"]), Prices(**cost["prices"]))
    text = "At these prices the split never pays."
    if even is not None:
        text = f"The split is the cheaper one from {shown(even)} queries a day."
    drawn = (storage_figure(cost), money_figure(cost))
    return Section(title="Storage and money", text=text, figures=drawn)


def storage_figure(cost: Json) -> Bars:
    """Gigabytes of a corpus for every kind of codec."""
    chosen = Storage(**cost["storage"])
    names = ["fp32", "fp16", "int8", "int4"]
    narrow = max(1, chosen.width // 4)
    names += [f"project:{narrow}+{kind}" for kind in ("fp16", "int8", "int4")]
    stored = [replace(chosen, codec=name) for name in dict.fromkeys([*names, chosen.codec])]
    stored.sort(key=lambda one: -one.total_bytes)
    return Bars(
        name="storage",
        title="What the states of a corpus take",
        caption=(
            f"{chosen.passages:,} passages of {chosen.tokens:g} tokens, states {chosen.width} wide; text, "
            "offsets and vectors come on top."
        ),
        x=Axis(title="gigabytes", zero=True, unit=" GB"),
        bars=tuple(
            Bar(
                name=one.codec,
                value=one.total_bytes / 1e9,
                note=f"{one.passage_bytes / 1024:.1f} KiB a passage",
                group="chosen" if one.codec == chosen.codec else "",
            )
            for one in stored
        ),
        commands=(cost["command"],),
    )


def money_figure(cost: Json) -> Lines:
    """Dollars a month of both models over queries a day."""
    demand, prices = Demand(**cost["demand"]), Prices(**cost["prices"])
    rows = curve(demand, prices)

    def series(name: str, field: str) -> Series:
        points = (Point(x=row["queries_per_day"], y=row[field]) for row in rows)
        return Series(name=name, points=tuple(points))

    even = break_even(demand, prices)
    marks = (Mark(x=even, text=f"break-even, {shown(even)} a day"),) if even else ()
    return Lines(
        name="money",
        title="Dollars a month against queries a day",
        caption=(
            f"Passages scored a query: {demand.candidates}. ${prices.device_hour:g} an hour of the device, "
            f"${prices.reads_10k:g} per 10,000 reads, ${prices.gb_month:g} per GB and month."
        ),
        x=Axis(title="queries a day", log=True),
        y=Axis(title="dollars a month", log=True, unit=" $"),
        series=(series("joint", "joint"), series("split and stored", "split")),
        marks=marks,
        commands=(cost["command"],),
    )


def plot_money(cost: Json, path: Path) -> None:
    """Write the picture of what `cost` computed, as .svg or .png."""
    if path.suffix not in (".svg", ".png"):
        raise OptionError("plot", f"is {path}; name a file that ends in .svg or .png")
    save(money_figure(cost), path)


def peer_sections(benches: Sequence[Json]) -> list[Section]:
    """Speed against peers, one figure for each setting that was measured."""
    drawn: list[Bars] = []
    for bench in benches:
        commands = (bench["command"],) if bench.get("command") else ()
        drawn += [replace(figure, commands=commands) for figure in figures(bench["rows"])]
    text = (
        "The same texts, end to end: query in, ranked passages out. The weights are the same in every bar "
        "but those that name another model."
    )
    return [Section(title="Against peers", text=text, figures=tuple(drawn))] if drawn else []
