"""Does the suggested split agree with trained sweeps? Every rule tried, beside some that measure nothing.

    python benchmarks/suggestion.py --json benchmarks/results/suggestion.json

Reads the layer studies and the training results in `benchmarks/results`. The truth of a dataset is the
deepest split that keeps 98% of its teacher's score, all splits trained with the same budget.
"""

from pathlib import Path
from typing import Any

from decoupled.lab.report.quality import curve_of
from decoupled.lab.report.sources import Json, read_sources
from decoupled.lab.script import options, write_report
from decoupled.lab.study.suggest import KEEP, LEAVE, best_trade_off, suggest

TRIED = (0.5, 0.4, 0.3)
"""Shares that must remain; the default was chosen among them by this table, so its row is in-sample."""
SHARES = {"a third": (1, 3), "half": (1, 2), "two thirds": (2, 3)}


def suggested(study: Json) -> dict[str, int]:
    """The split that each rule suggests: that of `decoupled lab layers`, and a fixed share of the layers."""
    crossing = study["crossing_query"], study["crossing_passage"]
    rules = {f"crossing attention, leave {x}": suggest(*crossing, leave=x).split for x in TRIED}
    fixed = {name: a * study["layers"] // b for name, (a, b) in SHARES.items()}
    return rules | {f"always {name} of the layers": split for name, split in fixed.items()}


def compare(results: Path) -> dict[str, Any]:
    """Truth, suggestions and how many are within one layer, for every dataset that has both."""
    sources = read_sources([results])
    rows: list[dict[str, Any]] = []
    for study in sources.layers:
        name = study["task"]
        curve = curve_of([s for s in sources.scores if s.dataset == name], "distilled")
        if len(curve) <= study["layers"]:
            continue
        row = {"dataset": name, "studied": study["model"]}
        rows.append({**row, "best": best_trade_off(curve), "suggested": suggested(study)})
    near = {
        rule: sum(abs(row["suggested"][rule] - row["best"]) <= 1 for row in rows)
        for rule in rows[0]["suggested"]
    }
    return {"keep": KEEP, "leave": LEAVE, "datasets": rows, "within_one_layer": near}


if __name__ == "__main__":
    args = options(__doc__, results=Path(__file__).parent / "results")
    write_report(args, compare(args.results))
