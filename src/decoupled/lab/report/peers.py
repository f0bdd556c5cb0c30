"""Figures of races against peers."""

from collections.abc import Sequence
from dataclasses import replace

from decoupled.lab.bench.report import figures
from decoupled.lab.report.figure import Bars, Section
from decoupled.lab.report.sources import Json


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
