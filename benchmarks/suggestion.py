"""Does the suggested split agree with trained sweeps? Every rule tried, beside some that measure nothing.

    python benchmarks/suggestion.py --json benchmarks/results/suggestion.json

Reads the layer studies and the training results in `benchmarks/results`. The truth of a dataset is the
deepest split that keeps 98% of its teacher's score, all splits trained with the same budget.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from decoupled.lab.report.sweeps import KEEP, best_trade_off
from decoupled.lab.script import options, write_report
from decoupled.train.suggest import LEAVE, suggest

TRIED = (0.5, 0.4, 0.3)
"""Shares that must remain; the default was chosen among them by this table, so its row is in-sample."""
SHARES = {"a third": (1, 3), "half": (1, 2), "two thirds": (2, 3)}


def suggested(study: dict[str, Any]) -> dict[str, int]:
    """The split that each rule suggests: that of `decoupled lab layers`, and a fixed share of the layers."""
    crossing = study["crossing_query"], study["crossing_passage"]
    rules = {f"crossing attention, leave {x}": suggest(*crossing, leave=x).split for x in TRIED}
    fixed = {name: a * study["layers"] // b for name, (a, b) in SHARES.items()}
    return rules | {f"always {name} of the layers": split for name, split in fixed.items()}


def training_runs(results: Path) -> Iterator[dict[str, Any]]:
    """Every run of the training results that says which variant it is."""
    for path in sorted(results.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        for run in (document.get("runs") if isinstance(document, dict) else None) or ():
            if isinstance(run, dict) and "variant" in (run.get("run") or {}) and "test" in run:
                yield run


def distilled_curve(runs: list[dict[str, Any]], dataset: str) -> dict[int, float]:
    """Scores by split of the models that were distilled with one budget; 0 is their best teacher."""
    seeds: dict[tuple[Any, ...], dict[int, float]] = {}
    for run in runs:
        about, tested = run["run"], run["test"].get("fp")
        if about["dataset"] != dataset or about.get("curve") not in ("joint", "distilled"):
            continue
        if tested:
            score = next(tested[m] for m in ("accuracy", "f1", "mrr@10") if m in tested)
            key = about["curve"], about.get("split", 0), about["variant"], about.get("projection")
            seeds.setdefault(key, {})[about.get("seed", 0)] = score
    curve: dict[int, float] = {}
    for (kind, split, *_), scores in seeds.items():
        at = 0 if kind == "joint" else split
        curve[at] = max(mean(scores.values()), curve.get(at, 0.0))
    return curve


def compare(results: Path) -> dict[str, Any]:
    """Truth, suggestions and how many are within one layer, for every dataset that has both."""
    runs = list(training_runs(results))
    files = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(results.glob("layers_*.json"))
    ]
    studies = [*files, *(run["layers"] for run in runs if isinstance(run.get("layers"), dict))]
    rows: list[dict[str, Any]] = []
    for study in studies:
        curve = distilled_curve(runs, study["task"])
        if len(curve) <= study["layers"]:
            continue
        row = {"dataset": study["task"], "studied": study["model"]}
        rows.append({**row, "best": best_trade_off(curve), "suggested": suggested(study)})
    near = {
        rule: sum(abs(row["suggested"][rule] - row["best"]) <= 1 for row in rows)
        for rule in rows[0]["suggested"]
    }
    return {"keep": KEEP, "leave": LEAVE, "datasets": rows, "within_one_layer": near}


if __name__ == "__main__":
    args = options(__doc__, results=Path(__file__).parent / "results")
    write_report(args, compare(args.results))
