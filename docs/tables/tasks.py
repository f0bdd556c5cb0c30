"""The tables of every task of the sources, of the search for a recipe, and of DeFormer's own tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from decoupled.measure.money import cost
from decoupled.model.codec import bytes_per_token
from results import RESULTS, Table, read

Run = Mapping[str, Any]
NAMES = {
    "squad": "SQuAD 1.1, F1",
    "squad2": "SQuAD 2.0, F1",
    "race": "RACE",
    "boolq": "BoolQ",
    "nli": "MNLI + SNLI",
    "qqp": "QQP",
    "mrpc": "MRPC",
    "paws": "PAWS",
    "scitail": "SciTail",
    "twitter": "Twitter-URL",
}
FILES = ("train_curves.json", "train_squad2.json", "train_race.json", "train_tasks.json")
PRINTED = {"squad": (88.5, 87.1), "race": (66.3, 64.5), "boolq": (77.8, 76.8)}
PRINTED |= {"nli": (84.4, 82.6), "qqp": (90.5, 90.3)}
"""DeFormer, table 1: BERT-base, and split at 9 of 12; `nli` is MNLI alone there."""


def results(*names: str) -> dict[str, Run]:
    """The runs of these files by name, of those that there are."""
    there = [name for name in names if (RESULTS / name).exists()]
    return {run["name"]: run for name in there for run in read(name)["runs"]}


def seeds(of: Mapping[str, Run], data: str, what: str) -> list[Run]:
    """The runs of a dataset's model, one for each seed."""
    names = [f"{data}-{what}", *(f"{data}-{what}-s{seed}" for seed in range(3))]
    return [of[name] for name in names if name in of]


def score(run: Run) -> float:
    """What a run is judged by."""
    metrics = run["test"]["fp"]
    return float(metrics["f1" if run["run"]["dataset"].startswith("squad") else "accuracy"])


def spread(values: Sequence[float], places: int = 1) -> str:
    """Their mean, and the standard deviation where there are several."""
    mean = f"{statistics.mean(values):.{places}f}"
    return f"{mean} ± {statistics.stdev(values):.{places}f}" if len(values) > 1 else mean


def lost(of: Iterable[Run]) -> str:
    """The mean of what is lost, and the widest of the intervals."""
    every = [run["test"]["fp"]["lost"] for run in of]
    mean = statistics.mean(one["mean"] for one in every)
    low, high = min(one["low"] for one in every), max(one["high"] for one in every)
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


def tasks() -> Table:
    of, least = results(*FILES), read("majority.json")["datasets"]
    rows = []
    for data, name in NAMES.items():
        joint = seeds(of, data, "joint")
        if not joint:
            continue
        majority = least[data]["accuracy"] if data in least else None
        cells = []
        for found in (joint, *(seeds(of, data, f"k{k}") for k in (2, 3, 4))):
            values = [score(run) for run in found]
            below = majority is not None and values and statistics.mean(values) < majority
            cells.append(spread(values) + (" ↓" if below else "") if values else None)
        split = seeds(of, data, "k3")
        pairs = joint[0]["pairs"]["train"] // (4 if data == "race" else 1)
        most = "" if majority is None else f"{majority:.1f}"
        rows.append((name, f"{pairs:,}", most, *cells, lost(split) if split else None))
    header = ("accuracy, or F1", "trained on", "majority", "joint", "k=2", "k=3", "k=4")
    return (*header, "lost at k=3 (95%)"), rows


def race_curve() -> Table:
    run = results("train_race.json")["race-joint"]
    steps = run["steps"]
    return ("share of the training", "questions read", "accuracy, held out"), [
        (f"{step / steps:.0%}", f"{step * run['recipe']['optimiser']['batch']:,}", f"{value:.1f}")
        for step, value in run["curve"]
    ]


def searched() -> Table:
    """The best trials, and the two that a search begins with."""
    rows = []
    for run in read("tune.json")["runs"]:
        trials = run["trials"]
        data = run["run"]["dataset"]
        words = f"{NAMES[data]}, {len(trials)} trials"
        lr = run["recipe"]["optimiser"]["lr"]
        known = {(0.5, 0.2, 0.3): "DeFormer's weights", (1.0, 0.5, 0.2): "set by hand"}
        for rank, trial in enumerate(trials, 1):
            weights = (trial["kd"], trial["lrs"], trial["task"])
            first = trial["temperature"] == 2.0 and trial["lr"] == lr and known.get(weights)
            if rank <= 3 or first:
                values = (*weights, trial["temperature"], f"{trial['lr']:g}")
                rows.append((words, rank, *values, f"{trial['score']:.2f}", first or None))
    header = ("data", "rank", "KD", "LRS", "task", "temperature", "rate", "tune split")
    return (*header, "<"), rows


def conflicts() -> Table:
    of = results("train_curves.json")
    rows = []
    for words, name in (
        ("as DeFormer's code, the default", "squad-k3"),
        ("`kl=reverse`: KL(student‖teacher), the text", "squad-k3-reverse"),
        ("`lrs_from=split`: from layer k on, the text", "squad-k3-from-split"),
        ("`lrs_reduce=sum`: squared distances, summed, the text", "squad-k3-sum"),
    ):
        found = [of[f"{name}-s{seed}"] for seed in range(3) if f"{name}-s{seed}" in of]
        if found:
            rows.append((words, len(found), spread([score(run) for run in found], 2)))
    return ("losses", "seeds", "F1"), rows


def three_curves() -> Table:
    of = results("train_curves.json")

    def cell(name: str) -> str | None:
        return f"{score(of[name]):.1f}" if name in of else None

    joint = cell("squad-joint")
    rows = []
    for words, name in (
        ("split, no training", "squad-k{}-untrained"),
        ("fine-tuned on the task alone", "squad-k{}-labels-s0"),
        ("distilled", "squad-k{}-s0"),
    ):
        rows.append((words, joint, *(cell(name.format(k)) for k in range(1, 7))))
    return ("F1, layers per text alone", "0 (joint)", *map(str, range(1, 7))), rows


def deformer_tasks() -> Table:
    rows = []
    for name, one in read("deformer.json")["tasks"].items():
        printed = one["printed"]
        row = (name, "+".join(map(str, one["tokens"])), printed["speedup"], one["speedup"])
        saved = (printed["memory_saved"], one["requested_saved"], one["peak_saved"])
        rows.append((*row, *(f"{value:.1f}" for value in saved)))
    speed = ("speed-up, printed", "counted")
    header = ("BERT-base at 9 of 12", "tokens", *speed, "memory saved %, printed")
    return (*header, "measured, sum", "measured, peak"), rows


def deformer_models() -> Table:
    rows = []
    for name, one in read("deformer.json")["models"].items():
        flops = (one["printed"]["gflops"], one["gflops"])
        held = (one["printed"]["memory_mb"], one["requested_mb"], one["peak_mb"])
        rows.append((name, *(f"{value:.1f}" for value in (*flops, *held))))
    header = ("SQuAD, 27+293 tokens", "GFLOPs, printed", "counted", "MB, printed")
    return (*header, "measured, sum", "measured, peak"), rows


def seconds() -> Table:
    """What each table took on the GPU: the training alone, which others ran beside."""
    rows = []
    for name in (*FILES, "tune.json"):
        if (RESULTS / name).exists():
            runs = read(name)["runs"]
            spent = sum(run["train_seconds"] for run in runs)
            commands = sorted({run["command"].partition(" --data")[0] for run in runs})
            presets = {c for one in commands for c in one.split(" --preset ")[1:]}
            rows.append((f"`{name}`", ", ".join(sorted(presets)), len(runs), f"{spent:,.0f}"))
    return ("file", "<presets of `train_suite.py`", "runs", "GPU seconds"), rows


PRICES = {"queries": 100_000, "candidates": 100, "passages": 1_000_000, "device_hour": 0.08}
"""A day's queries, each against a hundred of a million passages; dollars an hour of two cores."""
WAYS = (
    ("joint, fp32", "joint_fp32", ("joint, OpenVINO fp32", "joint, openvino-fp32"), None),
    ("joint, int8", "joint_int8", ("joint, OpenVINO int8", "joint, openvino-int8"), None),
    ("split, states of width 96 in fp16, fp32", "split_fp32", (), "fp16"),
    ("split, codes and int8", "split_int8", ("split, all read", "split"), "codes"),
)
"""What is compared, whose answers are judged, how its time is called, and how states are kept."""


def final() -> Table:
    """Joint, split, and split with codes and int8: quality, time, bytes and money."""
    rows = []
    for words, quality, times, codes in (
        ("6 layers", "starter", "cpu_ask.json", "int4"),
        ("12 layers", "12", "cpu_deep.json", "int8"),
    ):
        clock = read(times)["wall_ms"] if (RESULTS / times).exists() else {}
        for what, judged, names, kept in WAYS:
            # The joint form of the starter was never trained, so only its time means something.
            name = judged.removeprefix("split_") if quality == "starter" else judged
            file = RESULTS / f"final_{quality}_{name}.json"
            f1 = f"{read(file.name)['f1']:.1f}" if file.exists() else None
            ms = next((clock[name] for name in names if name in clock), None)
            codec = f"project:96+{codes if kept == 'codes' else kept}" if kept else None
            rows.append((f"{words}: {what}", f1, *bill(ms, codec)))
        if "split, all read" in clock:
            reading = bill(clock["split"], f"project:96+{codes}")
            rows.append((f"{words}: the same, as `ask` reads by default", None, *reading))
    header = ("SQuAD 1.1, 100 passages a question, two cores", "F1, passage given", "ms")
    return (*header, "KiB a passage", "dollars a month, local disk", "object store"), rows


def bill(ms: float | None, codec: str | None) -> tuple[str | None, ...]:
    """Time of a query, bytes of a passage of 150 tokens, and what a month costs."""
    kept = f"{150 * bytes_per_token(codec, 384) / 1024:.1f}" if codec else None
    if ms is None:
        return None, kept, None, None
    pair = ms / PRICES["candidates"]
    times = {"joint_ms": pair, "split_ms": pair, "codec": codec or "fp16", "width": 384}
    side = "split" if codec else "joint"
    bills = (cost(**PRICES, **times, **reads)[side]["total"] for reads in ({"reads": 0}, {}))
    return f"{ms:,.0f}", kept, *(f"{dollars:,.0f}" for dollars in bills)


TASKS = (
    tasks,
    final,
    race_curve,
    searched,
    conflicts,
    three_curves,
    deformer_tasks,
    deformer_models,
    seconds,
)
