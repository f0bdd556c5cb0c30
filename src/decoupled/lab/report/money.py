"""Figures of storage, money and peers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from decoupled.errors import OptionError
from decoupled.lab.bench.report import figures
from decoupled.lab.cost import Demand, Prices, Storage, break_even, curve
from decoupled.lab.report.figure import Axis, Bar, Bars, Lines, Mark, Point, Section, Series, shown
from decoupled.lab.report.picture import save_png
from decoupled.lab.report.sources import Json
from decoupled.lab.report.svg import draw

SEED: Json = {
    "storage": {"passages": 1_000_000, "tokens": 150.0, "width": 768, "codec": "fp16"},
    "demand": {
        "queries_per_day": 1e6,
        "candidates": 1,
        "joint_ms": 4600 / 640,
        "split_ms": 1400 / 640,
        "stored_gb": 226.0,
        "index_ms": 0.0,
        "passages": 0,
    },
    "prices": {"device_hour": 2.48, "reads_10k": 0.004, "gb_month": 0.02},
    "command": "decoupled lab cost",
}
"""The worked example of DeFormer, shown where no cost was computed."""


def cost_section(costs: tuple[Json, ...]) -> Section:
    """Bytes by codec, and money by queries a day."""
    cost = costs[-1] if costs else SEED
    demand, prices = Demand(**cost["demand"]), Prices(**cost["prices"])
    storage = Storage(**cost["storage"])
    even = break_even(demand, prices)
    whose = (
        ""
        if costs
        else "The worked example of DeFormer's appendix; `decoupled lab cost` computes yours. "
    )
    text = (
        f"{whose}The split is the cheaper one from {shown(even)} queries a day."
        if even is not None
        else f"{whose}At these prices the split never pays."
    )
    return Section(
        title="Storage and money",
        text=text,
        figures=(storage_figure(storage, cost), money_figure(demand, prices, cost)),
    )


def storage_figure(storage: Storage, cost: Json) -> Bars:
    """Gigabytes of a corpus for every kind of codec."""
    width = storage.width
    names = ["fp32", "fp16", "int8", "int4"]
    narrow = max(1, width // 4)
    names += [f"project:{narrow}+{kind}" for kind in ("fp16", "int8", "int4", "residual:2")]
    if storage.codec not in names:
        names.append(storage.codec)
    made = [
        Storage(passages=storage.passages, tokens=storage.tokens, width=width, codec=name)
        for name in names
    ]
    made.sort(key=lambda s: -s.total_bytes)
    return Bars(
        name="storage",
        title="What the states of a corpus take",
        caption=(
            f"{storage.passages:,} passages of {storage.tokens:g} tokens, states {width} wide; text, "
            "offsets and vectors come on top."
        ),
        x=Axis(title="gigabytes", zero=True, unit=" GB"),
        bars=tuple(
            Bar(
                name=s.codec,
                value=s.total_bytes / 1e9,
                note=f"{s.passage_bytes / 1024:.1f} KiB a passage",
                group="chosen" if s.codec == storage.codec else "",
            )
            for s in made
        ),
        commands=(cost["command"],),
    )


def money_figure(demand: Demand, prices: Prices, cost: Json) -> Lines:
    """Dollars a month of both models over queries a day."""
    rows = curve(demand, prices)

    def series(name: str, field: str) -> Series:
        return Series(
            name=name, points=tuple(Point(x=r["queries_per_day"], y=r[field]) for r in rows)
        )

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
    """The picture of what `cost` said, as .svg or .png."""
    figure = money_figure(Demand(**cost["demand"]), Prices(**cost["prices"]), cost)
    if path.suffix == ".svg":
        path.write_text(draw(figure), encoding="utf-8")
    elif path.suffix == ".png":
        save_png(figure, path)
    else:
        raise OptionError(f"--plot is {path}; name a file that ends in .svg or .png")


def peer_sections(benches: tuple[Json, ...]) -> list[Section]:
    """Speed against peers, one figure for each setting that was measured."""
    drawn: list[Bars] = []
    for bench in benches:
        commands = (bench["command"],) if bench.get("command") else ()
        drawn += [replace(figure, commands=commands) for figure in figures(bench.get("rows", ()))]
    text = (
        "The same texts, end to end: query in, ranked passages out. The weights are the same in every bar "
        "but those that name another model."
    )
    return [Section(title="Against peers", text=text, figures=tuple(drawn))] if drawn else []
