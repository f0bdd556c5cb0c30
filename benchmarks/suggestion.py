"""Does the suggested split agree with trained sweeps? Every rule tried, beside some that measure nothing.

    python benchmarks/suggestion.py --json benchmarks/results/suggestion.json

Reads the layer studies and the training results in `benchmarks/results`. The truth of a dataset is the
deepest split that keeps 98% of its teacher's score, all splits trained with the same budget.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from bench_report import options, write_report
from decoupled.lab.report.quality import curve_of
from decoupled.lab.report.sources import Json, read_sources
from decoupled.lab.study.suggest import KEEP, LEAVE, best_trade_off, suggest

Rule = Callable[[Json], int]


def crossing(leave: float) -> Rule:
    """The rule of `decoupled layers`, with another share that must remain."""
    return lambda study: (
        suggest(study["crossing_query"], study["crossing_passage"], leave=leave).split
    )


RULES: dict[str, Rule] = {
    "crossing attention, leave 0.5": crossing(0.5),
    "crossing attention, leave 0.4": crossing(0.4),
    "crossing attention, leave 0.3": crossing(0.3),
    "always a third of the layers": lambda study: study["layers"] // 3,
    "always half of the layers": lambda study: study["layers"] // 2,
    "always two thirds of the layers": lambda study: 2 * study["layers"] // 3,
}
"""The first three are all that were tried; the default was chosen among them by this table, so its row is
in-sample."""


def compare(results: Path) -> dict[str, Any]:
    """Truth, suggestions and how many are within one layer, for every dataset that has both."""
    sources = read_sources([results])
    rows: list[dict[str, Any]] = []
    for study in sources.layers:
        name = study["task"]
        curve = curve_of([s for s in sources.scores if s.dataset == name], "distilled")
        if len(curve) <= study["layers"]:
            continue
        found = {rule: choose(study) for rule, choose in RULES.items()}
        teacher = PurePath(study["model"]).name == f"{name}-joint"
        row = {"dataset": name, "studied": study["model"], "joint_of_that_task": teacher}
        rows.append({**row, "best": best_trade_off(curve), "suggested": found})
    near = {
        rule: sum(abs(row["suggested"][rule] - row["best"]) <= 1 for row in rows) for rule in RULES
    }
    return {"keep": KEEP, "leave": LEAVE, "datasets": rows, "within_one_layer": near}


if __name__ == "__main__":
    args = options(__doc__, results=Path(__file__).parent / "results")
    write_report(args, compare(args.results))
