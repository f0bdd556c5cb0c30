"""`cost` and `report`: storage and money, and everything measured as one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoupled.cli import printing
from decoupled.errors import InputError

if TYPE_CHECKING:
    from decoupled.measure.cost import Demand, Prices
    from decoupled.measure.storage import Storage

SPLIT_SHARE = 1400 / 4600
"""Time of the cross component over that of the joint model in DeFormer's example, where none is given."""


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(cost)
    app.command()(report)


def cost(
    passages: Annotated[int, typer.Option(min=1, help="Passages in the index.")] = 1_000_000,
    tokens: Annotated[float, typer.Option(help="Mean tokens of a passage.")] = 150,
    width: Annotated[int, typer.Option(min=1, help="Width of the states.")] = 768,
    codec: Annotated[str, typer.Option(help="How states are stored: fp16, project:192+int8…")] = (
        "fp16"
    ),
    queries: Annotated[float, typer.Option(help="Queries a day.")] = 1_000_000,
    candidates: Annotated[int, typer.Option(min=1, help="Passages scored for each query.")] = 1,
    joint_ms: Annotated[
        float,
        typer.Option(help="Device time of a pair in the joint model; the paper's if not given."),
    ] = 4600 / 640,
    split_ms: Annotated[
        float | None,
        typer.Option(help="The same in the cross component.", show_default="0.30 of --joint-ms"),
    ] = None,
    index_ms: Annotated[float, typer.Option(help="Device time to encode a passage once.")] = 0,
    device_hour: Annotated[float, typer.Option(help="Dollars for an hour of the device.")] = 2.48,
    reads: Annotated[float, typer.Option(help="Dollars for 10,000 reads of the store.")] = 0.004,
    gb_month: Annotated[float, typer.Option(help="Dollars for a GB kept a month.")] = 0.02,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="JSON file for `report`.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Picture of the money to write: .svg or .png.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Storage and money in a month, joint and split. Without options: the example of DeFormer's paper."""
    from decoupled.cli.lab import command
    from decoupled.measure.cost import Demand, Prices, break_even, encode_once
    from decoupled.measure.storage import Storage
    from decoupled.model.jsonable import to_json

    storage = Storage(passages=passages, tokens=tokens, width=width, codec=codec)
    demand = Demand(
        queries_per_day=queries,
        candidates=candidates,
        joint_ms=joint_ms,
        split_ms=joint_ms * SPLIT_SHARE if split_ms is None else split_ms,
        stored_gb=storage.total_bytes / 1e9,
        index_ms=index_ms,
        passages=passages,
    )
    prices = Prices(device_hour=device_hour, reads_10k=reads, gb_month=gb_month)
    facts: dict[str, Any] = {
        "kind": "cost",
        "command": command(),
        "storage": to_json(storage),
        "demand": to_json(demand),
        "prices": to_json(prices),
        "passage_bytes": storage.passage_bytes,
        "total_bytes": storage.total_bytes,
        **_bills(demand, prices),
        "break_even_queries_per_day": break_even(demand, prices),
        "encode_once": round(encode_once(demand, prices), 2),
    }
    if output is not None:
        output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if plot is not None:
        _plot(plot, demand, prices, facts)
    if as_json:
        printing.document(facts)
    else:
        _show_cost(storage, facts)


def _bills(demand: Demand, prices: Prices) -> dict[str, Any]:
    from decoupled.measure.cost import joint_bill, split_bill

    return {
        "joint": joint_bill(demand, prices).to_json(),
        "split": split_bill(demand, prices).to_json(),
    }


def _show_cost(storage: Storage, facts: dict[str, Any]) -> None:
    rows = [
        (name, *(f"{facts[side][name]:,.2f}" for side in ("joint", "split")))
        for name in ("compute", "reads", "storage", "total")
    ]
    printing.table(("dollars a month", "joint", "split"), rows)
    even = facts["break_even_queries_per_day"]
    pays = "never" if even is None else f"from {even:,.0f} queries a day"
    printing.facts(
        [
            ("a passage", f"{storage.passage_bytes:,.0f} bytes ({storage.codec})"),
            ("the corpus", f"{storage.total_bytes / 1e9:,.1f} GB"),
            ("the split pays", pays),
            ("encoding, once", f"{facts['encode_once']:,.2f} dollars"),
        ]
    )


def _plot(path: Path, demand: Demand, prices: Prices, facts: dict[str, Any]) -> None:
    from decoupled.lab.report.money import money_figure
    from decoupled.lab.report.picture import save_png
    from decoupled.lab.report.svg import draw

    figure = money_figure(demand, prices, facts)
    if path.suffix == ".svg":
        path.write_text(draw(figure), encoding="utf-8")
    elif path.suffix == ".png":
        save_png(figure, path)
    else:
        raise InputError(f"--plot is {path}; name a file that ends in .svg or .png")


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Files of sweep, layers, cost, bench or training results, or folders of them."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Folder for a PNG and a CSV of each figure; beside the page if not given."
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Where to split",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """One HTML file with every figure: no network needed to open it."""
    from decoupled.lab.report.sources import read_sources
    from decoupled.lab.report.write import write_report

    if output.is_dir():
        raise InputError(f"{output} is a folder; name an HTML file to write")
    read = read_sources(sources)
    folder = figures or output.with_suffix("")
    done = write_report(read, output, title=title, folder=folder)
    for name in read.skipped:
        printing.note(f"nothing to draw in {name}; left out")
    if not done.pictures:
        printing.note(
            'no PNG files: matplotlib is missing; pip install "decoupled-transformer[plots]"'
        )
    if as_json:
        facts = {"page": str(done.page), "folder": str(folder), "figures": list(done.figures)}
        printing.document({**facts, "skipped": list(read.skipped)})
    printing.note(f"{output}: {len(done.figures)} figures; their PNG and CSV files are in {folder}")
