"""Figures of what scores claim and how often they are right."""

from __future__ import annotations

from collections.abc import Sequence

from decoupled.lab.report.figure import Axis, Lines, Point, Section, Series
from decoupled.lab.report.sources import Json

_RIGHT = Series(name="as claimed", points=(Point(x=0, y=0), Point(x=1, y=1)), dashed=True)


def calibration_sections(studies: Sequence[Json]) -> list[Section]:
    """One section with a reliability diagram for each study."""
    if not studies:
        return []
    return [
        Section(
            title="What a score means",
            text="Of answers and passages with a score of 0.8, eight in ten should be right.",
            figures=tuple(_diagram(study) for study in studies),
        )
    ]


def _diagram(study: Json) -> Lines:
    return Lines(
        name=f"calibration-{study['name']}",
        title=f"How often scores are right: {study['title']}",
        caption="Scores in bins of equal width; expected calibration error: "
        + "; ".join(f"{c['name']} {c['error']:.3f}" for c in study["curves"])
        + ".",
        x=Axis(title="score", zero=True),
        y=Axis(title="share that is right", zero=True),
        series=(_RIGHT, *map(_curve, study["curves"])),
        commands=(study["command"],) if study.get("command") else (),
    )


def _curve(curve: Json) -> Series:
    points = (
        Point(x=one["score"], y=one["right"], note=f"{one['count']:,} scores")
        for one in curve["bins"]
    )
    return Series(name=curve["name"], points=tuple(points))
