"""Figures of models that were adapted: how far each says what its teacher says, and how long both take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from decoupled.lab.report.figure import Axis, Bar, Bars, Section
from decoupled.lab.report.sources import Json

AS_IT_WAS = " Training made it agree less, so its weights stay as they were."


def adapted_sections(studies: Sequence[Json]) -> list[Section]:
    """One section with both figures of each model."""
    taught = [study for study in studies if study["after"] is not None]
    if not taught:
        return []
    figures = tuple(draw(study) for study in taught for draw in (_agreement, _times))
    return [
        Section(
            title="Adapted without labels",
            text="A split model that learnt on the texts of an index what its teacher says of them.",
            figures=figures,
        )
    ]


def _agreement(study: Json) -> Bars:
    name, teachers = Path(study["model"]).name, " + ".join(study["teachers"])
    bars = (
        Bar(name=f"{metric}, {when}", value=study[when][metric], group=metric)
        for metric in study["after"]
        for when in ("before", "after")
    )
    return Bars(
        name=f"adapted-{name}",
        title=f"{name}: agreement with {teachers}",
        caption=f"On {study['held_out']:,} queries that were set aside of those it learnt from "
        f"({study['queries']:,} were left).{'' if study.get('trained', True) else AS_IT_WAS}",
        x=Axis(title="agreement", zero=True),
        bars=tuple(bars),
    )


def _times(study: Json) -> Bars:
    name, teacher = Path(study["model"]).name, study.get("teacher_ms")
    times = {"split, with the index": study["split_ms"]} | ({"teacher": teacher} if teacher else {})
    return Bars(
        name=f"adapted-{name}-time",
        title=f"{name}: time of a query with its candidates",
        caption="The median of the second of two calls, on the machine that adapted it.",
        x=Axis(title="milliseconds", zero=True, unit="ms"),
        bars=tuple(Bar(name=who, value=value) for who, value in times.items()),
    )
