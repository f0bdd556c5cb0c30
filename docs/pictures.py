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
from decoupled.lab.report.figure import Axis, Lines, Point, Series
from decoupled.lab.report.picture import save_png

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """What a query of 100 passages takes on a CPU, and the memory of a server over many requests."""
    raced = read("bench_cpu.json")
    rows = [row for row in raced["rows"] if (row["shape"], row["top"]) == ("BERT-base", 100)]
    report.plot(rows, ROOT / "docs/images/bench_cpu.png")
    save_png(memory(), ROOT / "docs/images/serve_memory.png")
    save_png(compared(), ROOT / "docs/images/final.png")


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


if __name__ == "__main__":
    main()
