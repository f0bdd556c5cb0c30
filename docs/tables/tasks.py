"""The tables of every task of the sources, of DeFormer's own tables, and of joint and split models side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from decoupled.measure.metrics import paired_difference
from decoupled.measure.money import cost
from decoupled.model.codec import bytes_per_token
from results import RESULTS, Table, read

Run = Mapping[str, Any]
NAMES = {
    "squad": "SQuAD 1.1, F1",
    "squad2": "SQuAD 2.0, F1",
    "race": "RACE, a quarter",
    "boolq": "BoolQ",
    "mnli": "MNLI",
    "nli": "MNLI + SNLI",
    "qqp": "QQP, from MNLI + SNLI",
    "mrpc": "MRPC",
    "twitter": "Twitter-URL",
    "paws": "PAWS",
    "scitail": "SciTail",
}
FILES = (
    *("train_squad.json", "train_seeds.json", "train_pairs.json"),
    *("train_reading.json", "train_tasks.json"),
)
"""The first file that has a run decides."""
MODELS = ("joint", "k2", "k3", "k4")


def tasks() -> Table:
    of: dict[str, Run] = {}
    for file in FILES:
        for run in read(file)["runs"]:
            of.setdefault(run.get("name") or run["run"]["name"], run)
    least = read("majority.json")["datasets"]
    rows = []
    for data, name in NAMES.items():
        found = {what: seeds(of, data, what) for what in MODELS}
        if not found["joint"]:
            continue
        most = f"{least[data]['accuracy']:.1f}" if data in least else None
        cells = [mean(found[what], float(most or 0)) for what in MODELS]
        rows.append((name, most, *cells, chance(found["joint"])))
    header = ("accuracy, or F1", "most frequent", "joint", "k=2", "k=3", "k=4")
    return (*header, "± by the number of questions"), rows


def seeds(of: Mapping[str, Run], data: str, what: str) -> list[Run]:
    """The runs of a dataset's model, one for each seed."""
    names = [f"{data}-{what}", *(f"{data}-{what}{loss}-s{n}" for n in range(3) for loss in ("", "-kdlrs"))]  # fmt: skip
    return [of[name] for name in names if name in of]


def score(run: Run) -> float:
    """What a run is judged by."""
    metrics = run["test"]["fp"]
    return float(metrics["f1" if run["run"]["dataset"].startswith("squad") else "accuracy"])


def mean(found: list[Run], least: float) -> str | None:
    """The mean over seeds, and their number where there are several; ↓ is below the most frequent label."""
    if not found:
        return None
    value = statistics.mean(map(score, found))
    many = f" ({len(found)} seeds)" if len(found) > 1 else ""
    return f"{value:.1f}{many}{' ↓' if value < least else ''}"


def chance(joint: list[Run]) -> str:
    """Half of the interval of 95% that so many test questions leave open."""
    share, pairs = score(joint[0]) / 100, joint[0]["pairs"]["test"]
    count = pairs // 4 if joint[0]["run"]["dataset"] == "race" else pairs
    return f"{196 * math.sqrt(share * (1 - share) / count):.1f}"


def seconds() -> Table:
    """What the runs of each file took on the GPU, beside others."""
    rows = []
    for name in FILES:
        runs = read(name)["runs"]
        spent = sum(run["train_seconds"] for run in runs if "train_seconds" in run)
        rows.append((f"`{name}`", len(runs), f"{spent:,.0f}"))
    return ("file", "runs", "GPU seconds of training"), rows


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


# Joint and split ----------------------------------------------------------------------------------

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
            f1 = answered(file.name, "final_12_joint_fp32.json") if file.exists() else None
            ms = next((clock[name] for name in names if name in clock), None)
            codec = f"project:96+{codes if kept == 'codes' else kept}" if kept else None
            rows.append((f"{words}: {what}", f1, *bill(ms, codec)))
        if "split, all read" in clock:
            reading = bill(clock["split"], f"project:96+{codes}")
            rows.append((f"{words}: the same, as `ask` reads by default", None, *reading))
    header = ("SQuAD 1.1, 100 passages a question, two cores", "F1, passage given", "ms")
    return (*header, "KiB a passage", "dollars a month, local disk", "object store"), rows


def answered(name: str, joint: str) -> str:
    """F1, and how far below the joint model of 12 layers it is on the same questions, with its interval."""
    ours, theirs = read(name), read(joint)
    if name == joint or not (ours.get("each") and theirs.get("each")):
        return f"{ours['f1']:.1f}"
    lost, low, high = (100 * value for value in paired_difference(theirs["each"], ours["each"]))
    return f"{ours['f1']:.1f}; lost {lost:.1f} ({low:.1f} to {high:.1f})"


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


TASKS = (tasks, seconds, final, deformer_tasks, deformer_models)
