"""The tables of every task of the sources, of DeFormer's own tables, and of joint and split models side by side."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from decoupled.lab.cost import cost
from decoupled.lab.study.paired import paired_difference
from decoupled.model.codec import bytes_per_token
from results import RESULTS, Table, read

Run = Mapping[str, Any]
NAMES = {
    "squad": "SQuAD 1.1, F1",
    "squad2": "SQuAD 2.0, F1",
    "race": "RACE",
    "boolq": "BoolQ",
    "mnli": "MNLI",
    "nli": "MNLI + SNLI",
    "qqp": "QQP",
    "mrpc": "MRPC",
    "paws": "PAWS",
    "scitail": "SciTail",
    "twitter": "Twitter-URL",
}
CURVES, INSIDE = "train_curves.json", "layers_squad.json"
FILES = (CURVES, "train_squad2.json", "train_race.json", "train_tasks.json")
OLDER = ("train_pairs.json",)
"""Of before each question's score was kept; of datasets whose splits the others lack."""
SPENT = (
    *(*FILES, "train_conflicts.json", "train_tuned.json", "tune.json"),
    *("train_squad.json", "train_seeds.json", *OLDER, "train_kinds.json"),
)
MISSING, CHOSEN = "not run", "settings of its own search"


def results(*names: str) -> dict[str, Run]:
    """The runs of those files that there are, by name; the first that has one decides."""
    found: dict[str, Run] = {}
    for name in names:
        for run in read(name)["runs"] if (RESULTS / name).exists() else ():
            found.setdefault(run.get("name") or run["run"]["name"], run)
    return found


def tasks() -> Table:
    least = read("majority.json")["datasets"]
    rows = []
    for data, name in NAMES.items():
        of = source(data)
        joint, split = seeds(of, data, "joint"), seeds(of, data, "k3")
        if not joint:
            rows.append((name, None, None, MISSING, MISSING, MISSING, MISSING, None))
            continue
        most = least[data]["accuracy"] if data in least else None
        cells = [scored(seeds(of, data, what), most or 0) for what in ("joint", "k2", "k3", "k4")]
        pairs = joint[0]["pairs"]["train"] // (4 if data == "race" else 1)
        shown = None if most is None else f"{most:.1f}"
        rows.append((name, f"{pairs:,}", shown, *cells, lost(split)))
    header = ("accuracy, or F1", "trained on", "most frequent", "joint", "k=2", "k=3", "k=4")
    return (*header, "lost at k=3 (95%)"), rows


def source(data: str) -> dict[str, Run]:
    """The runs that speak for a dataset."""
    new, old = results(*FILES), results(*OLDER)
    return new if seeds(new, data, "k3") or not seeds(old, data, "joint") else old


def seeds(of: Mapping[str, Run], data: str, what: str) -> list[Run]:
    """The runs of a dataset's model, one for each seed."""
    names = [f"{data}-{what}", *(f"{data}-{what}-s{n}" for n in range(3))]
    return [of[name] for name in names if name in of]


def score(run: Run) -> float:
    """What a run is judged by."""
    metrics = run["test"]["fp"]
    return float(metrics["f1" if run["run"]["dataset"].startswith("squad") else "accuracy"])


def spread(values: Sequence[float], places: int = 1) -> str:
    """Their mean, and the standard deviation where there are several."""
    mean = f"{statistics.mean(values):.{places}f}"
    return f"{mean} ± {statistics.stdev(values):.{places}f}" if len(values) > 1 else mean


def scored(found: Sequence[Run], least: float = 0, places: int = 1) -> str:
    """Over the seeds, their number in brackets where it is not three; ↓ is below the most frequent label."""
    if not found:
        return MISSING
    values = [score(run) for run in found]
    many = "" if len(values) == 3 else f" ({len(values)})"
    below = " ↓" if statistics.mean(values) < least else ""
    return f"{spread(values, places)}{many}{below}"


def lost(found: Sequence[Run]) -> str | None:
    """The mean of what is lost, and the widest of the intervals."""
    every = [run["test"]["fp"]["lost"] for run in found if "lost" in run["test"]["fp"]]
    if not every:
        return None
    mean = statistics.mean(one["mean"] for one in every)
    low, high = min(one["low"] for one in every), max(one["high"] for one in every)
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


def race_curve() -> Table:
    """How RACE's joint model learns, on the questions that are set aside."""
    found = results("train_race.json").get("race-joint")
    header = ("questions read", "accuracy, set aside")
    if found is None:
        return header, [(MISSING, MISSING)]
    batch = found["recipe"]["optimiser"]["batch"]
    return header, [(f"{step * batch:,}", f"{value:.1f}") for step, value in found["curve"]]


def searched() -> Table:
    """The best trials of each search, and the two that it begins with."""
    rows: list[tuple[object, ...]] = []
    for name in ("tune-squad", "tune-nli"):
        run = results("tune.json").get(name)
        data = NAMES[name.removeprefix("tune-")]
        if run is None:
            rows.append((data, *[MISSING] * 7, None))
            continue
        own = {**run["recipe"], **run["recipe"].get("settings", {})}  # older files have no settings
        begun = {(0.5, 0.2, 0.3): "DeFormer's weights"}
        begun[tuple(own["weights"][name] for name in ("kd", "lrs", "task"))] = "the recipe's own"
        for rank, trial in enumerate(run["trials"], 1):
            weights = (trial["kd"], trial["lrs"], trial["task"])
            at_start = trial["temperature"] == own["temperature"]
            first = at_start and trial["lr"] == own["optimiser"]["lr"] and begun.get(weights)
            if rank <= 3 or first:
                values = (*weights, trial["temperature"], f"{trial['lr']:g}")
                words = f"{data}, {len(run['trials'])} trials"
                rows.append((words, rank, *values, f"{trial['score']:.2f}", first or None))
    header = ("data", "rank", "KD", "LRS", "task", "temperature", "rate", "tune split")
    return (*header, "<"), rows


def tuned() -> Table:
    """What each search chose, and the default, in whole trainings; each beside its own joint model."""
    of, rows = results("train_tuned.json"), []
    for data in ("squad", "nli"):
        own = [of[f"{data}-k3-tuned-s{n}"] for n in range(3) if f"{data}-k3-tuned-s{n}" in of]
        for words, runs in ((CHOSEN, own), ("the default", seeds(source(data), data, "k3"))):
            rows.append((f"{NAMES[data]}: {words}", scored(runs, places=2), lost(runs)))
    return ("k=3", "score", "lost to its joint model (95%)"), rows


def conflicts() -> Table:
    """What DeFormer's text and code say differently."""
    of = results("train_conflicts.json")
    rows = []
    for words, name in (
        ("as DeFormer's code, the default", "k3"),
        ("`kl=reverse`: KL(student‖teacher), the text", "k3-reverse"),
        ("`lrs_from=split`: from layer k on, the text", "k3-from-split"),
        ("`lrs_reduce=sum`: squared distances, summed, the text", "k3-sum"),
    ):
        found = seeds(of, "squad", name)
        rows.append((words, scored(found, places=2), lost(found)))
    return ("losses, SQuAD at k=3", "F1", "lost to the joint model (95%)"), rows


def three_curves() -> Table:
    """DeFormer's figure 4."""
    of = results(CURVES)

    def row(kind: str) -> list[str]:
        return [scored(seeds(of, "squad", f"k{k}{kind}")) for k in range(1, 7)]

    joint = scored(seeds(of, "squad", "joint"))
    rows = [
        ("split, no training", joint, *row("-untrained")),
        ("fine-tuned on the task alone", joint, *row("-labels")),
        ("distilled", joint, *row("")),
    ]
    header = ("F1, layers that read each text alone", "0 (joint)", *map(str, range(1, 7)))
    return header, [[str(value).removesuffix(" (1)") for value in row] for row in rows]


def inside() -> Table:
    """DeFormer's figure 5: how far the states of passages are from the joint model's, layer by layer."""
    study, words = read(INSIDE), {"labels": "the task alone"}
    trained = {one["split"] for name, one in study["distances"].items() if "as split" not in name}
    shown = [(one["split"], name, one) for name, one in study["distances"].items()]
    rows: list[tuple[str, ...]] = []
    for split, name, one in sorted(shown, key=lambda item: item[0]):
        how = name.partition(", ")[2]
        if split in trained:
            far = (f"{value:.2f}" for value in one["passage"])
            rows.append((f"k={split}, {words.get(how, how)}", *far))
    rows.append(("between queries", *(f"{abs(value):.2f}" for value in study["variance"])))
    return ("cosine distance at layer", *map(str, range(study["layers"] + 1))), rows


def seconds() -> Table:
    """What the runs of each file took on the GPU, beside others."""
    rows = [(f"`{name}`", len(read(name)["runs"]), f"{spent(name):,.0f}") for name in SPENT]
    return ("file", "runs", "GPU seconds of training"), rows


def spent(name: str) -> float:
    """GPU seconds of the training runs of a file."""
    return sum(run.get("train_seconds", 0) for run in read(name)["runs"])


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


# Numbers in sentences -----------------------------------------------------------------------------


def _deep(name: str) -> float:
    """How many times as long the joint model of 12 layers takes."""
    clock = read("cpu_deep.json")["wall_ms"]
    return clock[name] / clock["split"]


def _first_questions() -> float:
    squad = read("cpu_deep.json")["squad"]
    return squad["joint"]["f1"] - squad["split"]["f1"]


def _starter() -> float:
    deep, starter = (read(name)["wall_ms"] for name in ("cpu_deep.json", "cpu_ask.json"))
    return deep["joint, openvino-fp32"] / starter["split, all read"]


def _gaps() -> list[float]:
    """Memory that a split saves by the paper and by our sums, in points; of QQP the lengths differ."""
    of = read("deformer.json")["tasks"]
    others = [one for name, one in of.items() if name != "QQP"]
    return sorted(one["printed"]["memory_saved"] - one["requested_saved"] for one in others)


def _peaks() -> list[float]:
    """Memory that a split saves at the peak, in per cent."""
    return sorted(one["peak_saved"] for one in read("deformer.json")["tasks"].values())


def _score(data: str, what: str) -> str:
    return f"{statistics.mean(map(score, seeds(source(data), data, what))):.1f}"


def _lost(data: str) -> str:
    """From the joint model to k=3, in points."""
    joint, split = (map(score, seeds(source(data), data, what)) for what in ("joint", "k3"))
    return f"{statistics.mean(joint) - statistics.mean(split):.1f}"


def _nearer(name: str) -> float:
    """How much nearer the last layer is to the joint model's after training, at 3 of 6."""
    of = read(INSIDE)["distances"]
    return of["k=3, as split"]["passage"][-1] / of[f"k=3, {name}"]["passage"][-1]


def _nearer_of_twelve() -> float:
    of = read("layers_deep.json")["distances"]
    return of["k=9, as split"]["passage"][-1] / of["distilled at 9"]["passage"][-1]


def _spent(name: str) -> str:
    return f"{spent(name):,.0f}"


TOLD = {
    "inside-distilled": lambda: f"{_nearer('distilled'):.1f}",
    "inside-labels": lambda: f"{_nearer('labels'):.1f}",
    "inside-deep": lambda: f"{_nearer_of_twelve():.0f}",
    **{
        f"gpu-{name.partition('.')[0].removeprefix('train_')}": partial(_spent, name)
        for name in SPENT
    },
    **{f"score-{data}": partial(_score, data, "joint") for data in NAMES},
    **{f"lost-{data}": partial(_lost, data) for data in NAMES},
    "final-over-int8": lambda: f"{_deep('joint, openvino-int8'):.1f}",
    "final-over-fp32": lambda: f"{_deep('joint, openvino-fp32'):.1f}",
    "final-first": lambda: f"{_first_questions():.1f}",
    "final-starter": lambda: f"{_starter():.1f}",
    "deformer-qqp": lambda: f"{read('deformer.json')['tasks']['QQP']['speedup']:.1f}",
    "deformer-peaks": lambda: f"{_peaks()[0]:.1f} to {_peaks()[-1]:.1f}",
    "deformer-gaps": lambda: f"{_gaps()[0]:.1f} to {_gaps()[-1]:.1f}",
    "deformer-large": lambda: f"{_gflops('BERT-large, split'):.1f}",
    "deformer-base": lambda: f"{_gflops('BERT-base'):.1f}",
}


def _gflops(name: str) -> float:
    return read("deformer.json")["models"][name]["gflops"]


TASKS = (
    *(tasks, race_curve, searched, tuned, conflicts, three_curves, inside, seconds),
    *(final, deformer_tasks, deformer_models),
)
