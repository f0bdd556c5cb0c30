"""Figures of scores and speed-ups: against the split, what is stored and time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import PurePath
from statistics import median

from decoupled.lab.report.figure import Axis, Bar, Bars, Lines, Mark, Point, Section, Series
from decoupled.lab.report.smaller import front
from decoupled.lab.report.sources import Json, Score, Sources
from decoupled.lab.study.suggest import KEEP, best_trade_off, knees
from decoupled.model.codec import bytes_per_token

SPLIT = Axis(title="split (layers that read each text alone)", whole=True)
CURVES = {
    "distilled": "distilled",
    "longer": "distilled for longer",
    "labels": "fine-tuned on the task alone",
    "untrained": "split, no training",
}
"""Curves of trained models against the split, as their series are called."""
WORDS = {
    "none": "labels only",
    "kd": "+ soft targets",
    "": "+ layer-wise",
    "last": "last layer only",
}
"""The losses of the ablation, as its bars call them."""


def score_sections(sources: Sources) -> list[Section]:
    """One section for each dataset, the most measured first."""
    names = list(dict.fromkeys([s.dataset for s in sources.scores]))
    names += [t for t in dict.fromkeys(map(task_of, sources.sweeps)) if t not in names]
    found = []
    for name in names:
        scores = [s for s in sources.scores if s.dataset == name]
        sweeps = [lines for lines in sources.sweeps if task_of(lines) == name]
        figures = [
            _against_split(name, scores, sweeps),
            *(_speedups(name, lines) for lines in sweeps[:1]),
            _against_bytes(name, scores),
            _against_time(name, scores, sweeps),
            _ablation(name, scores),
        ]
        if drawn := tuple(figure for figure in figures if figure is not None):
            text = _verdict(scores, sweeps)
            found.append(Section(title=title_of(name), text=text, figures=drawn))
    return sorted(found, key=lambda section: -len(section.figures))


def task_of(lines: Sequence[Json]) -> str:
    """The dataset of a sweep: its task, or the name of its data where the task is any pairs."""
    first = lines[0]
    return first["task"] if first["task"] != "pairs" else str(first["data"][0]).split(".")[0]


def title_of(name: str) -> str:
    """A dataset as people write it."""
    known = {"squad": "SQuAD 1.1", "squad2": "SQuAD 2.0", "boolq": "BoolQ"}
    known["twitter"] = "Twitter URL"
    return known.get(name, name.upper() if len(name) <= 5 else name.capitalize())


def curve_of(scores: Sequence[Score], *curves: str) -> dict[int, float]:
    """Scores of a curve by split, or the best of several; the joint model is split 0 of each."""
    found: dict[int, float] = {}
    for s in scores:
        if s.curve in curves and s.bits is None:
            found[s.split] = max(s.value, found.get(s.split, s.value))
    joint = joint_of(scores)
    return {0: joint.value, **dict(sorted(found.items()))} if joint and found else found


def joint_of(scores: Sequence[Score]) -> Score | None:
    """The joint model that taught the splits; of several that were tried, the best."""
    joint = [s for s in scores if s.split == 0 and s.bits is None]
    teachers = [s for s in joint if s.curve == "joint"]
    return max(teachers or joint, key=lambda s: s.value, default=None)


def sweep_curve(lines: Sequence[Json]) -> dict[int, float]:
    """Scores of a sweep by split."""
    return {line["split"]: line["score"] for line in lines}


def main_curve(scores: Sequence[Score], sweeps: Sequence[Sequence[Json]]) -> dict[int, float]:
    """The curve that decides: all splits trained with one budget, else the best there is."""
    trained = [sweep_curve(lines) for lines in sweeps if lines[0].get("training")]
    candidates = [
        curve_of(scores, "distilled"),
        *trained,
        curve_of(scores, "distilled", "longer"),
        curve_of(scores, "untrained"),
        *map(sweep_curve, sweeps),
    ]
    return next((c for c in candidates if len(c) >= 3 and 0 in c), {})


# Against the split --------------------------------------------------------------------------------


def _verdict(scores: Sequence[Score], sweeps: Sequence[Sequence[Json]]) -> str:
    curve = main_curve(scores, sweeps)
    if not curve:
        return ""
    if says_nothing(curve, sweeps):
        return (
            f"Every split scores as the joint model does ({curve[0]:.1f}), or that says one thing of all "
            "pairs, as one that has learned nothing does: these curves do not tell where to split."
        )
    best = best_trade_off(curve)
    kept = curve[best] / curve[0] if curve[0] else 0.0
    text = (
        f"Joint {curve[0]:.1f}. The deepest split that keeps {KEEP:.0%} of it is k={best} "
        f"({curve[best]:.1f}, {kept:.1%})"
    )
    fast = next((line for lines in sweeps for line in lines if line["split"] == best), None)
    if fast and best:
        text += f", at {fast['flops']['speedup']:.1f}× fewer FLOPs per query"
    return text + "."


def _against_split(
    name: str, scores: Sequence[Score], sweeps: Sequence[Sequence[Json]]
) -> Lines | None:
    series, commands = [], []
    for curve, words in CURVES.items():
        if points := _points(scores, curve):
            series.append(_curve(words, points, dashed=curve == "untrained"))
    for lines in sweeps:
        trained = lines[0].get("training")
        words = f"{_model(lines)}, {'distilled' if trained else 'no training'}"
        points = tuple(
            _judged(
                line["split"],
                line["score"],
                line.get("pairs"),
                f"agreement with the joint model {line['agreement']:.3f}",
            )
            for line in lines
        )
        series.append(_curve(words, points, dashed=not trained))
        commands.append(lines[0].get("command", ""))
    commands += [s.command for s in scores]
    if not series:
        return None
    metric = scores[0].metric if scores else sweeps[0][0]["metric"]
    return Lines(
        name=f"{name}-score",
        title=f"{title_of(name)}: {metric} against the split",
        caption=(
            "0 is the joint model. Bars are intervals of 95% by the number of pairs that judged, one seed "
            "where a point does not say otherwise. Hover, or focus with Tab, for values."
        ),
        x=SPLIT,
        y=Axis(title=metric),
        series=tuple(series),
        marks=_knee_marks(main_curve(scores, sweeps)),
        commands=_unique(commands),
    )


def _points(scores: Sequence[Score], curve: str) -> tuple[Point, ...]:
    found = {
        s.split: _judged(s.split, s.value, s.pairs, _seeds(s))
        for s in scores
        if s.curve == curve and s.bits is None
    }
    joint = joint_of(scores)
    if joint and found:
        found[0] = _judged(0, joint.value, joint.pairs, "the joint model")
    return tuple(found[k] for k in sorted(found))


def _judged(split: int, score: float, pairs: int | None, note: str) -> Point:
    """A score in per cent with the interval that so many pairs leave open (for F1 a little too wide)."""
    if not pairs:
        return Point(x=split, y=score, note=note)
    share = min(max(score / 100, 0.0), 1.0)
    spread = 196 * math.sqrt(share * (1 - share) / pairs)
    return Point(x=split, y=score, spread=spread, note=f"± {spread:.1f} by {pairs:,} pairs, {note}")


def _curve(name: str, points: tuple[Point, ...], *, dashed: bool) -> Series:
    """Points of one name; two of them are no curve."""
    return Series(name=name, points=points, dashed=dashed, line=len(points) > 2)


def says_nothing(curve: dict[int, float], sweeps: Sequence[Sequence[Json]]) -> bool:
    """Do all splits score alike, or does a joint model say the same of every pair?"""
    joint = [line for lines in sweeps for line in lines if line["split"] == 0]
    return len(set(curve.values())) == 1 or any(line.get("constant") for line in joint)


def _seeds(score: Score) -> str:
    return f"mean of {score.runs} runs" if score.runs > 1 else "one run"


def _knee_marks(curve: dict[int, float]) -> tuple[Mark, ...]:
    if len(curve) < 4:
        return ()
    found = knees(curve)
    marks = [Mark(x=found.first, text=f"loss is visible beyond {found.first}")]
    if found.second != found.first:
        marks.append(Mark(x=found.second, text=f"steepest fall beyond {found.second}"))
    return tuple(marks)


def _speedups(name: str, lines: Sequence[Json]) -> Lines | None:
    ours = [Point(x=ln["split"], y=ln["flops"]["speedup"]) for ln in lines]
    printed = [Point(x=ln["split"], y=ln["flops"]["published_speedup"]) for ln in lines]
    clock = [
        Point(
            x=line["split"],
            y=line["latency_ms"]["joint"]["median"] / line["latency_ms"]["split"]["median"],
            note=f"{line['latency_ms']['split']['median']:.1f} ms against "
            f"{line['latency_ms']['joint']['median']:.1f} ms for {line['candidates']} passages",
        )
        for line in lines
        if "split" in line.get("latency_ms", {})
    ]
    series = [
        Series(name="FLOPs of a query", points=tuple(ours)),
        Series(name="FLOPs as DeFormer counts", points=tuple(printed), dashed=True),
    ]
    if clock:
        series.append(Series(name="measured time", points=tuple(clock)))
    tokens = lines[0]["tokens"]
    device = lines[-1].get("device", "")
    where = f", measured on {device} with {lines[-1]['threads']} thread(s)" if device else ""
    return Lines(
        name=f"{name}-speedup",
        title=f"{title_of(name)}: speed-up against the split",
        caption=(
            f"Median lengths, {tokens['query']} and {tokens['passage']} tokens{where}. The upper curve "
            "also saves the rows of the last layer that no head reads, and encodes the query once for "
            "all passages."
        ),
        x=SPLIT,
        y=Axis(title="speed-up over the joint model", log=True, unit="×"),
        series=tuple(series),
        marks=_knee_marks(sweep_curve(lines)) if lines[0].get("training") else (),
        commands=_unique([lines[0].get("command", "")]),
    )


# Against bytes and time ---------------------------------------------------------------------------


def _against_bytes(name: str, scores: Sequence[Score]) -> Lines | None:
    codes = {None: "fp16", 8: "int8", 4: "int4"}
    series = []
    for bits, code in codes.items():
        found = {
            bytes_per_token(f"project:{s.projection}+{code}", s.projection): s
            for s in scores
            if s.curve == "projection" and s.projection and s.bits == bits
        }
        points = [
            Point(x=size, y=s.value, note=f"width {s.projection}, {code}, k={s.split}")
            for size, s in sorted(found.items())
        ]
        if points:
            series.append(Series(name=f"projection + {code}", points=tuple(points)))
    if not series:
        return None
    splits = {s.split for s in scores if s.projection}
    plain = [s for s in scores if s.split in splits and s.curve == "distilled"]
    if plain:
        sizes = [p.x for t in series for p in t.points]
        ends = min(sizes), max(sizes)
        level = tuple(Point(x=x, y=plain[0].value, note="states as they are") for x in ends)
        series.append(Series(name="no projection", points=level, dashed=True))
    return Lines(
        name=f"{name}-compression",
        title=f"{title_of(name)}: {scores[0].metric} against what is stored",
        caption="Each width of the learned projection, its states kept in 16, 8 or 4 bits.",
        x=Axis(title="bytes a token", log=True),
        y=Axis(title=scores[0].metric),
        series=tuple(series),
        commands=_unique([s.command for s in scores if s.projection]),
    )


def query_times(lines: Sequence[Json]) -> dict[int, float]:
    """Milliseconds of a query by split, as if the machine had been equally busy for all.

    Joint and split were measured in turns, so their ratio holds whatever else ran; the joint model's median
    over all splits gives the scale.
    """
    timed = [line for line in lines if "latency_ms" in line]
    if not timed:
        return {}
    typical = median(line["latency_ms"]["joint"]["median"] for line in timed)
    found = {0: typical}
    for line in timed:
        if "split" in line["latency_ms"]:
            clock = line["latency_ms"]
            found[line["split"]] = typical * clock["split"]["median"] / clock["joint"]["median"]
    return found


def _against_time(
    name: str, scores: Sequence[Score], sweeps: Sequence[Sequence[Json]]
) -> Lines | None:
    """Score against measured time; a training result takes the time of its split in the sweep."""
    clock = query_times([line for lines in sweeps for line in lines])
    if not clock:
        return None
    groups: dict[str, list[Point]] = {}
    for lines in sweeps:
        words = "distilled" if lines[0].get("training") else "no training"
        for line in lines:
            kind = words if line["split"] else "joint"
            note = f"{_model(lines)}, k={line['split']}"
            if line["split"] in clock:
                point = Point(x=clock[line["split"]], y=line["score"], note=note)
                groups.setdefault(kind, []).append(point)
    for score in scores:
        kind = "joint" if not score.split else "distilled" if score.trained else "no training"
        if score.split in clock:
            note = f"k={score.split} {score.variant}".strip()
            note += f", int{score.bits}" if score.bits else ""
            point = Point(x=clock[score.split], y=score.value, note=note)
            groups.setdefault(kind, []).append(point)
    best = front([point for points in groups.values() for point in points])
    series = [Series(name="Pareto front", points=best, dashed=True)]
    series += [Series(name=n, points=tuple(p), line=False) for n, p in groups.items()]
    metric = scores[0].metric if scores else sweeps[0][0]["metric"]
    return Lines(
        name=f"{name}-pareto",
        title=f"{title_of(name)}: {metric} against the time of a query",
        caption=(
            f"All variants. Times are the sweep's for {sweeps[0][0].get('candidates', 0)} passages, scaled "
            "to the joint model's median; a training result takes the time of its split."
        ),
        x=Axis(title="milliseconds", log=True),
        y=Axis(title=metric),
        series=tuple(series),
        commands=_unique([lines[0].get("command", "") for lines in sweeps]),
    )


def _ablation(name: str, scores: Sequence[Score]) -> Bars | None:
    plain = [s for s in scores if s.split == 3 and s.bits is None and not s.projection]
    found = [s for s in plain if s.variant in WORDS]
    if len(found) < 3:
        return None
    found.sort(key=lambda s: list(WORDS).index(s.variant))
    return Bars(
        name=f"{name}-losses",
        title=f"{title_of(name)}: what each loss adds at k=3",
        caption="Equal steps (DeFormer, table 4; `last layer only` is Decoupled Transformer).",
        x=Axis(title=found[0].metric, zero=True),
        bars=tuple(Bar(name=WORDS[s.variant], value=s.value, note=_seeds(s)) for s in found),
        commands=_unique([s.command for s in found]),
    )


def _model(lines: Sequence[Json]) -> str:
    return PurePath(lines[0]["model"]).name


def _unique(commands: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, commands)))[:4]
