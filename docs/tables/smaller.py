"""The tables of smaller models in docs/results.md, from the scores of the suite and the times on a CPU.

python benchmarks/shrink_table.py --scores train_shrink.json --times shrink_squad.json
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DATASETS = {"squad": "SQuAD", "mnli": "MNLI", "mrpc": "MRPC"}
METRIC = {"squad": "f1", "mnli": "accuracy", "mrpc": "accuracy"}
JOINT = {
    "joint": "as it is",
    "joint-longer": "trained on for the same budget",
    "joint-int8-weights": "int8 weights",
    "joint-int8": "int8, dynamic inputs",
    "joint-int8-aware": "int8, dynamic inputs, aware training",
    "joint-int8-static": "int8, static inputs",
    "joint-int4-weights": "int4 weights",
    "joint-int4-aware": "int4 weights, aware training",
    "joint-neurons": "half of the neurons",
    "joint-heads": "40% of the heads out, by importance",
    "joint-heads-random": "40% of the heads out, by chance",
    "joint-bands": "token table in bands",
    "joint-vocabulary": "vocabulary of 8,000",
    "joint-factorise": "token table of rank 128",
    "joint-weights": "half of the weights zero",
    "joint-low-rank": "layers' matrices of low rank, half of the parameters",
    "joint-share-ffn": "feed-forward maps shared",
    "joint-share": "layers shared in two groups",
    "joint-share-attention": "attention shared",
    "joint-fixed": "all but one head fixed",
    "joint-fixed-all": "all heads fixed",
    "joint-kd": "3 layers: distilled, start from the first",
    "joint-first": "3 layers: the first ones fine-tuned",
    "joint-kd-hidden": "3 layers: distilled, layer by layer",
    "joint-theseus": "3 layers: Theseus, curriculum",
    "joint-theseus-constant": "3 layers: Theseus, constant",
    "joint-every-other": "3 layers: every other one, no training",
    "joint-searched": "3 layers: searched, no training",
    "joint-learned": "3 layers: learned, no more training",
    "dropped": "trained with LayerDrop, whole",
    "dropped-every-other": "trained with LayerDrop, every other one, no more training",
    "joint-narrow": "width 192",
}
SPLIT = {
    "split": "as it is",
    "split-longer": "trained on for the same budget",
    "split-int8": "int8, dynamic inputs",
    "split-int8-aware": "int8, dynamic inputs, aware training",
    "split-int8-static": "int8, static inputs",
    "split-int4-weights": "int4 weights",
    "split-neurons": "half of the neurons",
    "split-heads": "40% of the heads out, by importance",
    "split-bands": "token table in bands",
    "split-vocabulary": "vocabulary of 8,000",
    "split-factorise": "token table of rank 128",
    "split-weights": "half of the weights zero",
    "split-low-rank": "layers' matrices of low rank, half of the parameters",
    "split-share": "layers of a side shared",
    "split-searched": "4 layers, searched, no training",
    "split-fixed": "all but one head fixed",
    "split-kd": "2 layers: distilled, start from the first",
    "split-first": "2 layers: the first ones fine-tuned",
    "split-kd-hidden": "2 layers: distilled, layer by layer",
    "split-theseus": "2 layers: Theseus",
}
TOGETHER = {
    "split-p96": "states projected to 96, in int8",
    "split-p96-int8": "and int8, dynamic inputs, aware training",
    "split-p96-slim": "and int8, table of rank 128, a quarter of the neurons out below, half above",
    "split-p96-thin": "and int8, table of rank 128, matrices of low rank, 60% of the parameters",
    "split-p96-slimmer": "and int8, table of rank 128, half of the neurons and 30% of the heads out",
}
ORDER = {
    "joint-theseus-long": "Theseus, curriculum, alone from 70% of the steps on",
    "joint-theseus-early-long": "Theseus, curriculum, alone from 40% on",
    "joint-theseus-whole-long": "Theseus, embedding and head not frozen",
    "joint-kd-long": "distilled, from the fine-tuned model's first layers",
    "joint-first-long": "fine-tuned, from the fine-tuned model's first layers",
    "joint-kd-pretrained-long": "distilled, from the pre-trained encoder's first layers",
    "joint-first-pretrained-long": "fine-tuned, from the pre-trained encoder's first layers",
}
Scores = dict[str, list[float]]


def main() -> None:
    """Print every table."""
    args = arguments()
    runs = json.loads(args.scores.read_text(encoding="utf-8"))["runs"]
    times = json.loads(args.times.read_text(encoding="utf-8"))["models"]
    scores, speed = by_model(runs), {row["name"]: row for row in times}
    for title, rows in (("joint model", JOINT), ("split at 3", SPLIT), ("together", TOGETHER)):
        print("\n".join(whole_table(title, rows, scores, speed)), end="\n\n")
    print("\n".join(score_table("3 layers of 6, by", ORDER, scores)), end="\n\n")
    print("\n".join(cut_table(scores)))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scores", type=Path, required=True, help="of train_collect.py")
    parser.add_argument("--times", type=Path, required=True, help="of shrink_speed.py")
    return parser.parse_args()


def by_model(runs: Sequence[dict[str, Any]]) -> Scores:
    """The scores of each model's seeds, by dataset and name; of coded states where they were coded."""
    found: Scores = {}
    for run in runs:
        metric = METRIC[run["run"]["dataset"]]
        test = run["test"].get("int8", run["test"]["fp"])
        found.setdefault(re.sub(r"-s\d+$", "", run["name"]), []).append(test[metric])
    return found


def cell(scores: Scores, dataset: str, name: str) -> str:
    """Mean and deviation over the seeds."""
    values = scores.get(f"{dataset}-{name}")
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    few = "" if len(values) == 3 else f" ({len(values)})"
    return f"{statistics.mean(values):.1f}{spread}{few}"


def line(cells: Sequence[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"


def whole_table(
    title: str, rows: dict[str, str], scores: Scores, speed: dict[str, Any]
) -> Iterator[str]:
    """Scores, sizes and times, the best of SQuAD first."""
    yield line(
        [title, *DATASETS.values(), "M parameters", "MB", "M MACs", "ms, torch", "ms, OpenVINO"]
    )
    yield "|---|" + "--:|" * 8
    first, *others = rows
    others.sort(key=lambda name: -statistics.mean(scores[f"squad-{name}"]))
    for name in (first, *others):
        row = speed[name]
        sizes = (row["parameters"] / 1e6, row["weight_bytes"] / 1e6, row["online_macs"] / 1e6)
        yield line(
            [
                rows[name],
                *(cell(scores, dataset, name) for dataset in DATASETS),
                f"{sizes[0]:.1f}",
                f"{sizes[1]:.0f}",
                f"{sizes[2]:.0f}",
                *(milliseconds(row, runtime) for runtime in ("online_32", "openvino_online_32")),
            ]
        )


def milliseconds(row: dict[str, Any], what: str) -> str:
    """A median, where that was timed."""
    return f"{row[what]['p50_ms']:.0f}" if what in row else ""


def score_table(title: str, rows: dict[str, str], scores: Scores) -> Iterator[str]:
    """Scores alone."""
    yield line([title, *DATASETS.values()])
    yield "|---|" + "--:|" * len(DATASETS)
    for name, words in rows.items():
        yield line([words, *(cell(scores, dataset, name) for dataset in DATASETS)])


def cut_table(scores: Scores) -> Iterator[str]:
    """Importance against chance."""
    kinds = [(unit, by) for unit in ("heads", "neurons") for by in ("importance", "random")]
    words = {"importance": "by importance", "random": "by chance"}
    yield line(["removed", *(f"{unit}, {words[by]}" for unit, by in kinds)])
    yield "|--:|" + "--:|" * len(kinds)
    for share in (20, 40, 60):
        names = [f"joint-cut-{unit}-{by}-{share}" for unit, by in kinds]
        yield line([f"{share}%", *(cell(scores, "squad", name) for name in names)])


if __name__ == "__main__":
    main()
