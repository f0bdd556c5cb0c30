"""Speed-ups as the papers print them, beside those that our formula gives."""

from __future__ import annotations

from decoupled.lab.bench.shapes import SHAPES
from decoupled.lab.report.figure import Axis, Lines, Point, Series
from decoupled.lab.report.quality import SPLIT
from decoupled.measure.counts import published_speedup

BASE = (1.1, 1.2, 1.3, 1.4, 1.6, 1.9, 2.2, 2.6, 3.2, 4.3, 6.4)
"""Speed-ups of BERT-base split at 1..11 on SQuAD (DeFormer, figure 4)."""
LARGE = (2.0, 2.2, 2.4, 2.6, 2.9, 3.2, 3.7, 4.3, 5.1, 6.4, 8.4)
"""The same for BERT-large at 13..23."""
QUERY, PASSAGE = 27, 293


def published_figure() -> Lines:
    """Printed and computed speed-ups of BERT-base and BERT-large."""
    series = []
    for name, first, row in (("BERT-base", 1, BASE), ("BERT-large", 13, LARGE)):
        spec = SHAPES[name].spec()
        splits = range(first, first + len(row))
        ours = [published_speedup(spec, k, query=QUERY, passage=PASSAGE) for k in splits]
        for words, values in (("our formula", ours), ("printed", row)):
            points = tuple(Point(x=k, y=y) for k, y in zip(splits, values, strict=True))
            made = Series(name=f"{name}, {words}", points=points, line=words != "printed")
            series.append(made)
    return Lines(
        name="published-speedup",
        title="Speed-up against the split, as DeFormer prints it",
        caption=(
            f"Joint FLOPs over FLOPs with stored passages, {QUERY}+{PASSAGE} tokens, every row of every "
            "layer. The printed values are those of the paper's figure 4; the formula gives all 22 to the "
            "printed digit."
        ),
        x=SPLIT,
        y=Axis(title="speed-up", zero=True, unit="×"),
        series=tuple(series),
        commands=("pytest tests/measure/test_measure_flops.py",),
    )
