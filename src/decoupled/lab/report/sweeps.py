"""Figures of sweeps: score and speed-up against the split."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from statistics import median

from decoupled.errors import InputError
from decoupled.lab.report.figure import Axis, Lines, Mark, Point, Section, Series
from decoupled.lab.report.sources import Json

SPLIT = Axis(title="split (layers that read each text alone)", whole=True)
Sweep = Sequence[Json]
KEEP, VISIBLE = 0.98, 0.99
"""Share of the joint model's score that a split should keep (DeFormer's choice, layer 9 of 12, keeps 97 to
99.8% on its five tasks), and below which a loss is visible."""


def sweep_sections(sweeps: Sequence[Sweep]) -> list[Section]:
    """One section for each dataset."""
    sections = []
    for name in dict.fromkeys(map(dataset_of, sweeps)):
        own = [lines for lines in sweeps if dataset_of(lines) == name]
        figures = (_against_split(name, own), _speedups(name, own[0]))
        sections.append(Section(title=name, text=_verdict(own), figures=figures))
    return sections


def dataset_of(lines: Sweep) -> str:
    """The dataset of a sweep: its task, or the name of its data where the task is any pairs."""
    first = lines[0]
    return first["task"] if first["task"] != "pairs" else str(first["data"][0]).split(".")[0]


def best_trade_off(scores: Mapping[int, float], *, keep: float = KEEP) -> int:
    """The deepest split that keeps that share of the joint model's score, as does every one before it."""
    if 0 not in scores:
        raise InputError(
            f"the splits {', '.join(map(str, sorted(scores)))} were scored without the joint model; "
            "score split 0 too"
        )
    best = 0
    for split in sorted(scores):
        if scores[split] < keep * scores[0]:
            break
        best = split
    return best


def knees(scores: Mapping[int, float]) -> tuple[int, int]:
    """The two bends of a curve of scores (Decoupled Transformer, figure 3).

    They are the deepest split before the loss becomes visible, and the one before the steepest fall.
    """
    order = sorted(scores)
    if len(order) < 3:
        raise InputError(f"{len(order)} splits were scored; two knees need at least 3")
    drops = [(scores[a] - scores[b]) / (b - a) for a, b in pairwise(order)]
    first = best_trade_off(scores, keep=VISIBLE)
    # A second knee at or before the first says nothing new, so it is looked for beyond.
    after = [n for n in range(len(drops)) if order[n] >= first]
    steepest = max(after, key=lambda n: drops[n], default=len(drops) - 1)
    return first, order[steepest]


def main_curve(sweeps: Sequence[Sweep]) -> dict[int, float]:
    """Scores by split of the curve that decides: of splits that were trained, else of any."""
    ordered = sorted(sweeps, key=lambda lines: not lines[0].get("training"))
    curves = ({line["split"]: line["score"] for line in lines} for lines in ordered)
    return next((curve for curve in curves if len(curve) >= 3 and 0 in curve), {})


def says_nothing(curve: dict[int, float], sweeps: Sequence[Sweep]) -> bool:
    """Do all splits score alike, or does a joint model say the same of every pair?"""
    joint = [line for lines in sweeps for line in lines if line["split"] == 0]
    return len(set(curve.values())) == 1 or any(line.get("constant") for line in joint)


def _verdict(sweeps: Sequence[Sweep]) -> str:
    curve = main_curve(sweeps)
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


def _against_split(name: str, sweeps: Sequence[Sweep]) -> Lines:
    return Lines(
        name=f"{name}-score",
        title=f"{name}: {sweeps[0][0]['metric']} against the split",
        caption="0 is the joint model. Bars are intervals of 95% by the number of pairs that judged.",
        x=SPLIT,
        y=Axis(title=sweeps[0][0]["metric"]),
        series=tuple(
            Series(
                name=f"{_model(lines)}, {_training(lines)}",
                points=tuple(map(_scored, lines)),
                dashed=not lines[0].get("training"),
                line=len(lines) > 2,  # two points are no curve
            )
            for lines in sweeps
        ),
        marks=_knee_marks(main_curve(sweeps)),
        commands=_commands(sweeps),
    )


def _scored(line: Json) -> Point:
    """A score in per cent with the interval that so many pairs leave open (for F1 a little too wide)."""
    note = f"agreement with the joint model {line['agreement']:.3f}"
    if not (pairs := line.get("pairs")):
        return Point(x=line["split"], y=line["score"], note=note)
    share = min(max(line["score"] / 100, 0.0), 1.0)
    spread = 196 * math.sqrt(share * (1 - share) / pairs)
    note = f"± {spread:.1f} by {pairs:,} pairs, {note}"
    return Point(x=line["split"], y=line["score"], spread=spread, note=note)


def _knee_marks(curve: dict[int, float]) -> tuple[Mark, ...]:
    if len(curve) < 4:
        return ()
    first, second = knees(curve)
    marks = [Mark(x=first, text=f"loss is visible beyond {first}")]
    if second != first:
        marks.append(Mark(x=second, text=f"steepest fall beyond {second}"))
    return tuple(marks)


def _speedups(name: str, lines: Sweep) -> Lines:
    series = [
        Series(name=words, points=tuple(Point(x=ln["split"], y=ln["flops"][field]) for ln in lines))
        for words, field in (
            ("FLOPs of a query", "speedup"),
            ("FLOPs as DeFormer counts", "published_speedup"),
        )
    ]
    times = query_times(lines)
    if len(times) > 1:
        points = tuple(Point(x=k, y=times[0] / ms, note=f"{ms:.1f} ms") for k, ms in times.items())
        series.append(Series(name="measured time", points=points[1:]))
    tokens, last = lines[0]["tokens"], lines[-1]
    where = ""
    if last.get("device"):
        where = f", measured on {last['device']} with {last['threads']} thread(s)"
    return Lines(
        name=f"{name}-speedup",
        title=f"{name}: speed-up against the split",
        caption=(
            f"Median lengths, {tokens['query']} and {tokens['passage']} tokens{where}. The FLOPs of a query "
            "leave out the rows of the last layer that no head reads, and its own are counted once."
        ),
        x=SPLIT,
        y=Axis(title="speed-up over the joint model", log=True, unit="×"),
        series=tuple(series),
        commands=_commands([lines]),
    )


def query_times(lines: Sweep) -> dict[int, float]:
    """Milliseconds of a query by split, as if the machine had been equally busy for all.

    Joint and split were measured in turns, so their ratio holds whatever else ran; the joint model's median
    over all splits gives the scale.
    """
    timed = [line for line in lines if "latency_ms" in line]
    if not timed:
        return {}
    typical = median(line["latency_ms"]["joint"]["median"] for line in timed)
    times = {0: typical}
    for line in timed:
        if "split" in line["latency_ms"]:
            clock = line["latency_ms"]
            times[line["split"]] = typical * clock["split"]["median"] / clock["joint"]["median"]
    return times


def _model(lines: Sweep) -> str:
    return PurePath(lines[0]["model"]).name


def _training(lines: Sweep) -> str:
    return "distilled" if lines[0].get("training") else "no training"


def _commands(sweeps: Sequence[Sweep]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (lines[0].get("command") for lines in sweeps))))[:4]
