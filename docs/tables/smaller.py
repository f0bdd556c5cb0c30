"""The tables of smaller models, from the scores of the suite and the times on a CPU."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from results import RESULTS, Table, read

Names = Mapping[str, str]
DATASETS = {"squad": "SQuAD", "mnli": "MNLI", "mrpc": "MRPC"}
PAIR = {name: DATASETS[name] for name in ("squad", "mnli")}
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
KINDS = {
    "kind-plain": "as it is",
    "kind-define": "DeFINE table of rank 128",
    "kind-factorise": "factorised table of rank 128",
    "kind-delight": "DeLighT layers",
    "kind-lsra": "LSRA layers, flat feed-forward maps",
    "kind-complex": "complex embeddings",
    "kind-scratch": "width 288, from scratch",
}
FILES = ("train_shrink.json", "train_kinds.json")
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
STARTER = {
    "starter": "as it is",
    "int8 dynamic": "int8, dynamic inputs",
    "int8 static": "int8, static inputs",
    "vocabulary 20k, int8 static": "vocabulary of 20,000, int8 static",
    "factorised 256, int8": "token table of rank 256, int8",
    "heads -10%, neurons -10%, int8": "10% of heads and neurons out, int8",
    "vocabulary in use, neurons -5%, int8": "the vocabulary in use, 5% of the neurons out, int8",
}


@cache
def scores() -> dict[str, list[float]]:
    """The scores of each model's seeds, by dataset and name; of coded states where they were coded."""
    found: dict[str, list[float]] = {}
    for run in (run for file in FILES for run in read(file)["runs"]):
        test = run["test"].get("int8", run["test"]["fp"])
        name = re.sub(r"-s\d+$", "", run["name"])
        found.setdefault(name, []).append(test[METRIC[run["run"]["dataset"]]])
    return found


@cache
def models(name: str) -> dict[str, Mapping[str, Any]]:
    """Sizes and times of the models of one file."""
    of = json.loads((RESULTS / name).read_text(encoding="utf-8"))["models"]
    return {row["name"]: row for row in of}


def cell(dataset: str, name: str) -> str:
    """Mean and deviation over the seeds."""
    values = scores().get(f"{dataset}-{name}")
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    few = "" if len(values) == 3 else f" ({len(values)})"
    said, mean = f"{statistics.mean(values):.1f}{spread}{few}", statistics.mean(values)
    return f"({said})" if mean <= majority().get(dataset, 0.0) + 0.05 else said


@cache
def majority() -> dict[str, float]:
    """What always saying the most frequent label scores; no model at or below it has learned anything."""
    sets = json.loads((RESULTS / "majority.json").read_text(encoding="utf-8"))["datasets"]
    return {name: of["accuracy"] for name, of in sets.items()}


def whole(
    title: str, rows: dict[str, str], timed: str = "shrink_squad.json", sets: Names = DATASETS
) -> Table:
    """Scores, sizes and times, the best of SQuAD first."""
    first, *others = rows
    others.sort(key=lambda name: -statistics.mean(scores()[f"squad-{name}"]))
    lines = []
    for name in (first, *others):
        row = models(timed)[name]
        sizes = [
            f"{row['parameters'] / 1e6:.1f}",
            f"{row['weight_bytes'] / 1e6:.0f}",
            f"{row['online_macs'] / 1e6:.0f}",
        ]
        times = [
            f"{row[key]['p50_ms']:.0f}" if key in row else ""
            for key in ("online_32", "openvino_online_32")
        ]
        lines.append([rows[name], *(cell(dataset, name) for dataset in sets), *sizes, *times])
    return (
        title,
        *sets.values(),
        "M parameters",
        "MB",
        "M MACs",
        "ms, torch",
        "ms, OpenVINO",
    ), lines


def theseus() -> Table:
    """Half of the layers with the budget of the whole model: scores alone."""
    rows = [
        (words, *(cell(dataset, name) for dataset in DATASETS)) for name, words in ORDER.items()
    ]
    return ("3 layers of 6, by", *DATASETS.values()), rows


def cuts() -> Table:
    """Importance against chance."""
    kinds = [(unit, by) for unit in ("heads", "neurons") for by in ("importance", "random")]
    words = {"importance": "by importance", "random": "by chance"}
    rows = [
        (f"{share}%", *(cell("squad", f"joint-cut-{unit}-{by}-{share}") for unit, by in kinds))
        for share in (20, 40, 60)
    ]
    return ("removed", *(f"{unit}, {words[by]}" for unit, by in kinds)), rows


def starter(name: str, runtimes: Mapping[str, str]) -> Table:
    """The bundled model made smaller without training."""
    of = models(name)
    whole = of["starter"]
    lines = []
    for key, row in of.items():
        times = []
        for clock in runtimes:
            took, base = row[clock]["p50_ms"], whole[clock]["p50_ms"]
            times += [f"{took:.0f}", f"{base / took:.2f}"]
        size = row["weight_bytes"] / 1e6
        lines.append(
            [
                STARTER.get(key, key),
                f"{row['score']:.1f}",
                f"{size:.1f}",
                f"{whole['weight_bytes'] / 1e6 / size:.2f}",
                *times,
            ]
        )
    clocks = [word for runtime in runtimes.values() for word in (f"{runtime}, ms", "faster")]
    return ("starter model", "F1", "MB", "smaller", *clocks), lines


SMALLER: dict[str, Callable[[], Table]] = {
    "smaller-joint": partial(whole, "joint model", JOINT),
    "smaller-split": partial(whole, "split at 3", SPLIT),
    "smaller-together": partial(whole, "together", TOGETHER),
    "kinds": partial(whole, "six layers of width 384", KINDS, "shrink_kinds.json", PAIR),
    "smaller-theseus": theseus,
    "smaller-cuts": cuts,
    "smaller-starter": partial(starter, "shrink_starter.json", {"online_32": "32 passages"}),
    "smaller-four": partial(
        starter,
        "shrink_starter_four.json",
        {"online_32": "32 passages, torch", "openvino_online_32": "OpenVINO"},
    ),
}
