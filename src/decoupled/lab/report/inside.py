"""Figures of what happens inside the layers (DeFormer, figures 2 and 5)."""

from __future__ import annotations

from pathlib import PurePath

from decoupled.lab.report.figure import Axis, Lines, Mark, Point, Section, Series
from decoupled.lab.report.quality import title_of
from decoupled.lab.report.sources import Json
from decoupled.lab.study.suggest import suggest

LAYER = Axis(title="layer (0 is the embedding)", whole=True)


def layer_sections(studies: tuple[Json, ...]) -> list[Section]:
    """One section for each study."""
    return [_section(study, number) for number, study in enumerate(studies)]


def _section(study: Json, number: int) -> Section:
    name = study["task"] if study["task"] != "pairs" else f"study-{number + 1}"
    # From the curves, not from the file: all studies of a page are judged by one rule.
    suggestion = suggest(study["crossing_query"], study["crossing_passage"])
    at = suggestion.split
    model = PurePath(study["model"]).name
    figures = [_variance(study, name, at), _crossing(study, name, at)]
    figures += [_distance(study, name, side) for side in ("query", "passage")]
    left = suggestion.remaining[at]
    return Section(
        title=f"Inside the layers: {title_of(name)}",
        text=(
            f"{model}, {study['pairs']} pairs. Suggested split: {at} of {study['layers']}, the deepest "
            f"that leaves enough ({left:.0%}) of the attention between both texts to the layers above."
        ),
        figures=tuple(figures),
    )


def _curve(values: list[float], first: int = 0) -> tuple[Point, ...]:
    return tuple(Point(x=n, y=value) for n, value in enumerate(values, first))


def _commands(study: Json) -> tuple[str, ...]:
    return (study["command"],) if study.get("command") else ()


def _variance(study: Json, name: str, at: int) -> Lines:
    return Lines(
        name=f"{name}-variance",
        title="How much a passage's states vary with the query",
        caption=(
            f"Mean cosine distance of a token to its centroid over the queries, {study['passages']} "
            "passages. Where it is low, a passage may as well be read alone."
        ),
        x=LAYER,
        y=Axis(title="cosine distance", zero=True),
        series=(Series(name="passage tokens", points=_curve(study["variance"])),),
        marks=(Mark(x=at, text=f"suggested split {at}"),),
        commands=_commands(study),
    )


def _crossing(study: Json, name: str, at: int) -> Lines:
    return Lines(
        name=f"{name}-crossing",
        title="Attention that crosses between the texts",
        caption="Share of each token's attention that goes to the other text, mean over heads.",
        x=Axis(title="layer", whole=True),
        y=Axis(title="share of attention", zero=True),
        series=(
            Series(name="query looks at passage", points=_curve(study["crossing_query"], 1)),
            Series(name="passage looks at query", points=_curve(study["crossing_passage"], 1)),
        ),
        marks=(Mark(x=at + 0.5, text=f"suggested split {at}"),) if at else (),
        commands=_commands(study),
    )


def _distance(study: Json, name: str, side: str) -> Lines:
    series = [
        Series(name=words, points=_curve(found[side]), dashed=words.endswith("as split"))
        for words, found in study["distances"].items()
    ]
    return Lines(
        name=f"{name}-distance-{side}",
        title=f"How far splits depart from the joint model: {side} tokens",
        caption=(
            "Mean cosine distance of the states at each layer, for every split and compared model. What a "
            "passage has at layer 0 comes of its positions, which begin again in a split model, and not of "
            "attention."
        ),
        x=LAYER,
        y=Axis(title="cosine distance", zero=True),
        series=tuple(series),
        commands=_commands(study),
    )
