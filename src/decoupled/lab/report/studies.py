"""Figures of what happens inside the layers (DeFormer, figures 2 and 5), and of adapted models."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from decoupled.lab.report.figure import Axis, Bar, Bars, Lines, Point, Section, Series
from decoupled.lab.report.sources import Json

LAYER = Axis(title="layer (0 is the embedding)", whole=True)
DISTANCE = Axis(title="cosine distance", zero=True)


def layer_sections(studies: Sequence[Json]) -> list[Section]:
    """One section for each study of layers."""
    return [_layers(study, number) for number, study in enumerate(studies)]


def _layers(study: Json, number: int) -> Section:
    name = study["task"] if study["task"] != "pairs" else f"study-{number + 1}"
    text = f"{PurePath(study['model']).name}, {study['pairs']} pairs."
    figures = [_variance(study, name), _crossing(study, name)]
    figures += [_distance(study, name, side) for side in ("query", "passage")]
    commands = (study["command"],) if study.get("command") else ()
    drawn = tuple(replace(figure, commands=commands) for figure in figures)
    return Section(title=f"Inside the layers: {name}", text=text, figures=drawn)


def _curve(name: str, values: list[float], *, first: int = 0) -> Series:
    points = tuple(Point(x=n, y=value) for n, value in enumerate(values, first))
    return Series(name=name, points=points, dashed=name.endswith("as split"))


def _variance(study: Json, name: str) -> Lines:
    return Lines(
        name=f"{name}-variance",
        title="How much a passage's states vary with the query",
        caption=(
            f"Mean cosine distance of a token to its centroid over the queries, {study['passages']} "
            "passages. Where it is low, a passage may as well be read alone."
        ),
        x=LAYER,
        y=DISTANCE,
        series=(_curve("passage tokens", study["variance"]),),
    )


def _crossing(study: Json, name: str) -> Lines:
    return Lines(
        name=f"{name}-crossing",
        title="Attention that crosses between the texts",
        caption="Share of each token's attention that goes to the other text, mean over heads.",
        x=Axis(title="layer", whole=True),
        y=Axis(title="share of attention", zero=True),
        series=(
            _curve("query looks at passage", study["crossing_query"], first=1),
            _curve("passage looks at query", study["crossing_passage"], first=1),
        ),
    )


def _distance(study: Json, name: str, side: str) -> Lines:
    return Lines(
        name=f"{name}-distance-{side}",
        title=f"How far splits depart from the joint model: {side} tokens",
        caption=(
            "Mean cosine distance of the states at each layer, for every split and compared model. What a "
            "passage has at layer 0 comes of its positions, which begin again in a split model, and not of "
            "attention."
        ),
        x=LAYER,
        y=DISTANCE,
        series=tuple(_curve(words, curves[side]) for words, curves in study["distances"].items()),
    )


def adapted_sections(studies: Sequence[Json]) -> list[Section]:
    """One section with two figures of each adapted model: its agreement with the teacher, and its time."""
    trained = [study for study in studies if study["after"] is not None]
    figures = tuple(draw(study) for study in trained for draw in (_agreement, _times))
    text = "A split model that learnt on the texts of an index what its teacher says of them."
    title = "Adapted without labels"
    return [Section(title=title, text=text, figures=figures)] if figures else []


def _agreement(study: Json) -> Bars:
    name, teachers = Path(study["model"]).name, " + ".join(study["teachers"])
    return Bars(
        name=f"adapted-{name}",
        title=f"{name}: agreement with {teachers}",
        caption=f"On {study['held_out']:,} queries that were set aside of those it learnt from "
        f"({study['queries']:,} were left).",
        x=Axis(title="agreement", zero=True),
        bars=tuple(
            Bar(name=f"{metric}, {when}", value=study[when][metric], group=metric)
            for metric in study["after"]
            for when in ("before", "after")
        ),
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


def certified_sections(certificates: Sequence[Json]) -> list[Section]:
    """One figure of all certified models: quality, or agreement without judgments, against time."""
    graded = all(one["ndcg"] for one in certificates)
    series = [Series(name=one["model"], points=_certified(one, graded)) for one in certificates]
    if not series:
        return []
    figure = Lines(
        name="certified",
        title="What a split keeps, and the time it takes",
        caption="Each line goes from the joint model to its split: to the left is faster, up is better.",
        x=Axis(title="milliseconds a query", zero=True, unit="ms"),
        y=Axis(title="nDCG@10" if graded else "Kendall's tau with the joint model"),
        series=tuple(series),
    )
    text = (
        "A split model over its index beside its joint model over the texts, in turns in one run."
    )
    return [Section(title="Certified", text=text, figures=(figure,))]


def _certified(one: Json, graded: bool) -> tuple[Point, Point]:
    joint, split = one["ndcg"] if graded else (1.0, one["tau"])
    note = f"{one['queries']:,} queries"
    return (
        Point(x=one["joint_ms"], y=joint, note=f"joint ({one['teacher']}), {note}"),
        Point(x=one["split_ms"], y=split, note=f"split, {note}"),
    )
