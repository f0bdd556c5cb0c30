"""Does the suggested split agree with trained sweeps? Every rule tried, beside some that measure nothing.

    python benchmarks/suggestion.py --json benchmarks/results/suggestion.json

Reads the layer studies and the training results in `benchmarks/results`. The truth of a dataset is the
deepest split that keeps 98% of its teacher's score, all splits trained with the same budget.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from decoupled.lab.report.quality import curve_of
from decoupled.lab.report.sources import Json, read_sources
from decoupled.lab.study.suggest import KEEP, LEAVE, best_trade_off, suggest

RESULTS = Path(__file__).parent / "results"

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


def main() -> None:
    """Print the table, and write it where the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = compare(options.results)
    for row in found["datasets"]:
        print(f"{row['dataset']} ({row['studied']}): best {row['best']}, {row['suggested']}")
    for rule, count in found["within_one_layer"].items():
        print(f"{rule}: within one layer on {count} of {len(found['datasets'])}")
    if options.json:
        command = "python benchmarks/suggestion.py"
        text = json.dumps({"command": command, **found}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
