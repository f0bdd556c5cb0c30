"""The pictures of the pages that are drawn from results; the screenshots are taken by tests/page_images.py.

make images
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from decoupled.lab.bench import report
from decoupled.lab.report.draw import save
from decoupled.lab.report.figure import Axis, Lines, Point, Series

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Times on a CPU, the memory of a server, and score against time of split and of smaller models."""
    raced = read("bench_cpu.json")
    rows = [row for row in raced["rows"] if (row["shape"], row["top"]) == ("BERT-base", 100)]
    report.plot(rows, ROOT / "docs/images/bench_cpu.png")
    save(memory(), ROOT / "docs/images/serve_memory.png")
    save(compared(), ROOT / "docs/images/final.png")
    save(smaller(), ROOT / "docs/images/smaller.png")


def read(name: str) -> dict[str, Any]:
    """One file of results."""
    return json.loads((ROOT / "benchmarks/results" / name).read_text(encoding="utf-8"))


def memory() -> Lines:
    """Resident memory of a server."""
    seen = read("serve_memory.json")["series"]
    points = zip(seen["requests"], seen["rss_mib"], strict=True)
    return Lines(
        name="serve-memory",
        title="Resident memory of a server, MiB",
        caption="Mixed requests, no text of which comes twice.",
        x=Axis(title="requests answered", zero=True, whole=True),
        y=Axis(title="MiB", zero=True, unit=" MiB"),
        series=(Series(name="resident", points=tuple(Point(x=x, y=y) for x, y in points)),),
    )


def compared() -> Lines:
    """Quality against time of joint models and of split ones."""
    sys.path.insert(0, str(ROOT / "docs/tables"))
    from tasks import final

    series = []
    for what, said, ms, *_ in final()[1]:
        if isinstance(ms, str) and isinstance(said, str):
            f1 = float(said.partition(";")[0])
            # Of 400 questions, what chance leaves open for each by itself.
            spread = 196 * math.sqrt(f1 / 100 * (1 - f1 / 100) / 400)
            point = Point(x=float(ms.replace(",", "")), y=f1, spread=spread)
            series.append(Series(name=str(what), points=(point,), line=False))
    return Lines(
        name="final",
        title="F1 on SQuAD 1.1 against the time of a question over 100 passages",
        caption="Two cores, OpenVINO; bars are what 400 questions leave open for each by itself.",
        x=Axis(title="milliseconds", log=True),
        y=Axis(title="F1"),
        series=tuple(series),
    )


def front(points: list[Point]) -> tuple[Point, ...]:
    """The points that no other beats in cost and score, by rising cost."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, -p.y)):
        if not best or point.y > best[-1].y:
            best.append(point)
    return tuple(best)


def smaller() -> Lines:
    """Score against time of models that were made smaller, and those of them that no other beats."""
    study = read("shrink_squad.json")
    groups: dict[str, list[Point]] = {"joint": [], "split": []}
    for row in study["models"]:
        if row["score"] is not None and "openvino_online_32" in row:
            point = Point(x=row["openvino_online_32"]["p50_ms"], y=row["score"])
            groups["split" if row["split"] else "joint"].append(point)
    best = front([point for points in groups.values() for point in points])
    series = [Series(name="Pareto front", points=best, dashed=True)]
    series += [Series(name=n, points=tuple(points), line=False) for n, points in groups.items()]
    title = "milliseconds of a query and 32 passages, on OpenVINO"
    return Lines(
        name="smaller",
        title=f"{study['metric']} against {title}",
        caption="Every model that was made smaller; the line joins those that no other beats.",
        x=Axis(title=title, log=True),
        y=Axis(title=study["metric"]),
        series=tuple(series),
    )


if __name__ == "__main__":
    main()
