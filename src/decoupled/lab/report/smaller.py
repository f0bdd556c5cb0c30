"""Smaller models: score against time and bytes, and which of them no other beats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from decoupled.lab.report.figure import Axis, Lines, Point, Section, Series
from decoupled.lab.report.sources import Json

TIMED = "milliseconds of a query and 32 passages, on"
Cost = Callable[[Json], float | None]
COSTS: dict[str, tuple[str, Cost]] = {
    "time": (f"{TIMED} torch", lambda row: _median(row, "online_32")),
    "openvino": (f"{TIMED} OpenVINO", lambda row: _median(row, "openvino_online_32")),
    "bytes": ("megabytes of weights", lambda row: float(row["weight_bytes"]) / 1e6),
}


def smaller_sections(studies: Sequence[Json]) -> list[Section]:
    """One section for each dataset on which smaller models were scored and timed."""
    return [_section(study) for study in studies if _scored(study)]


def front(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points that no other beats in cost and score, by rising cost."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, -p.y)):
        if not best or point.y > best[-1].y:
            best.append(point)
    return tuple(best)


def _scored(study: Json) -> list[Json]:
    return [row for row in study["models"] if row["score"] is not None]


def _section(study: Json) -> Section:
    name = study["dataset"]
    figures = tuple(
        _figure(study, name)
        for name, (_, cost) in COSTS.items()
        if any(cost(row) is not None for row in _scored(study))
    )
    text = (
        f"Methods of `decoupled methods shrink` on {name}, alone and on the split model, trained "
        "with one budget; timed on a CPU after weights were really removed."
    )
    return Section(title=f"Smaller models: {name}", text=text, figures=figures)


def _figure(study: Json, name: str) -> Lines:
    title, cost = COSTS[name]
    groups: dict[str, list[Point]] = {"joint": [], "split": []}
    for row in _scored(study):
        if (x := cost(row)) is not None:
            point = Point(x=x, y=row["score"], note=_note(row))
            groups["split" if row["split"] else "joint"].append(point)
    best = front([point for points in groups.values() for point in points])
    series = [Series(name="Pareto front", points=best, dashed=True)]
    series += [
        Series(name=kind, points=tuple(points), line=False)
        for kind, points in groups.items()
        if points
    ]
    return Lines(
        name=f"smaller-{study['dataset']}-{name}",
        title=f"{study['metric']} against {title}",
        caption="Every model that was made smaller; the line joins those that no other beats.",
        x=Axis(title=title, log=True),
        y=Axis(title=study["metric"]),
        series=tuple(series),
        commands=(study["command"],),
    )


def _median(row: Json, what: str) -> float | None:
    """Of what was timed, where it was: not every runtime runs every model."""
    return float(row[what]["p50_ms"]) if what in row else None


def _note(row: Json) -> str:
    spread = f" ± {row['spread']}" if row.get("spread") is not None else ""
    seeds = f"{row['seeds']} seeds" if row["seeds"] > 1 else "one seed"
    return f"{row['name']}{spread}, {seeds}"
