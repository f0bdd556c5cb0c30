"""`ask` over 100 candidates with the starter model against the joint model that reads all of them.

    python benchmarks/cpu_ask.py --squad DEV --questions 18 --json benchmarks/results/cpu_ask.json

Whole calls, from the question to the answer, over the sample index, on OpenVINO in int8: as `ask` is by
default, with 500 candidates, and reading all 100; the same weights unsplit in int8 and in fp32 there, and on
torch in fp32. All of them read texts of like length together. The sample questions warm up, then come
questions spread over SQuAD's development set. Rounds are interleaved; figures are medians, in wall time and
in processor time (which other programs on the machine disturb less). `in_a_row`: as many others, asked
by default one after the other, before the race.

    python benchmarks/cpu_ask.py --model SPLIT --joint JOINT --squad DEV --json results/cpu_deep.json

races another split model against its own joint one over the same hundred passages a question, and judges what
both answer to 500 questions of SQuAD with the passage given, in int8 too.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import numpy as np

import decoupled as dc
from decoupled.lab.script import options, write_report
from decoupled.methods.scores.scoring import spread
from decoupled.model.folder import starter_model
from decoupled.model.split import unsplit
from decoupled.runtime.open import open_joint
from decoupled.runtime.openvino.calibrate import export_int8
from decoupled.search.starter import sample_questions

JUDGED = 500
"""Questions of SQuAD."""


def main() -> None:
    """Time each, print and write the medians."""
    args = options(__doc__, questions=5, model=Path, joint=Path, squad=Path)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        found = race_given(args, work) if args.model else race(args, work)
        write_report(args, found)


def race(args: argparse.Namespace, work: Path) -> dict[str, object]:
    """Medians over the questions; one more, the first, warms up all, and the sample's warm up the split."""
    engine = dc.open()
    whole = dc.Model.load(starter_model())
    joint = whole.rebuild(unsplit(whole.spec), {"did": "unsplit"})
    joint.save(work / "joint")
    drawn = [pair.query for pair in spread(list(dc.read_pairs(args.squad)), 2 * args.questions + 2)]
    asked, others = drawn[::2], drawn[1::2]
    candidates = {question: engine.candidates(question) for question in asked}
    pairs = [(q, text.text) for q, found in candidates.items() for text in found[::5]]
    export_int8(work / "joint", pairs)
    readers = {
        "joint, OpenVINO int8": dc.Engine(work / "joint", runtime="openvino-int8"),
        "joint, OpenVINO fp32": dc.Engine(open_joint(starter_model())),
        "joint, torch fp32": dc.Engine(joint),
    }
    assert engine.index is not None
    ways: dict[str, Callable[[str], object]] = {
        "split": engine.ask,
        "split, 500 candidates": partial(engine.ask, candidates=500),
        "split, all read": dc.Engine(engine.index, cascade="all").ask,
    }
    for name, reader in readers.items():
        ways[name] = lambda question, reader=reader: reader.ask(
            question, texts=candidates[question]
        )
    for sample in sample_questions():
        engine.ask(sample.question)
    row = timed({"split": engine.ask}, others)
    found = {"in_a_row": {clock: row[clock]["split"] for clock in ("wall_ms", "processor_ms")}}
    return found | {"precision": engine.runtime.precision, **timed(ways, asked)}


def race_given(args: argparse.Namespace, work: Path) -> dict[str, object]:
    """A model that is split and the one that it was split from, over what the starter finds."""
    starter = dc.open()
    asked = [one.question for one in sample_questions()[: args.questions + 1]]
    found = {question: starter.candidates(question) for question in asked}
    pairs = [(question, text.text) for question, texts in found.items() for text in texts]
    for name, model in (("split", args.model), ("joint", args.joint)):
        shutil.copytree(model, work / name)
        export_int8(work / name, pairs)
    with dc.Index.create(work / "index", work / "split") as index:
        index.add({text.id: text for texts in found.values() for text in texts}.values())
    split = dc.Engine(work / "index")
    ways: dict[str, Callable[[str], object]] = {
        "split": lambda question: split.ask(question, ids=[text.id for text in found[question]])
    }
    for runtime in ("openvino-int8", "openvino-fp32"):
        joint = dc.Engine(work / "joint", runtime=runtime)
        ways[f"joint, {runtime}"] = lambda question, joint=joint: joint.ask(
            question, texts=found[question]
        )
    told: dict[str, object] = {"layers": len(split.spec.encoder.layers), "split": split.spec.split}
    if args.squad:
        judged = spread(list(dc.read_pairs(args.squad)), JUDGED)
        options = {"data": judged, "task": "squad", "runtime": "openvino-int8"}
        told["squad"] = {name: dc.evaluate(work / name, **options) for name in ("split", "joint")}
    return {"precision": split.runtime.precision, **told, **timed(ways, asked)}


def timed(ways: dict[str, Callable[[str], object]], asked: list[str]) -> dict[str, Any]:
    """Medians of each way in turn, the first question left out, and how many times that of the first way."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for question in asked:
        for name, ask in ways.items():
            wall, processor = time.perf_counter(), time.process_time()
            ask(question)
            spent[name].append((time.perf_counter() - wall, time.process_time() - processor))
    median = {name: 1e3 * np.median(rows[1:], 0) for name, rows in spent.items()}
    found: dict[str, Any] = {"candidates": 100, "questions": len(asked) - 1}
    found["load"] = os.getloadavg()[0]
    for number, clock in enumerate(("wall", "processor")):
        times = {name: float(value[number]) for name, value in median.items()}
        found[f"{clock}_ms"] = {name: round(t, 1) for name, t in times.items()}
        found[f"{clock}_ratio"] = {name: round(t / times["split"], 1) for name, t in times.items()}
    return found


if __name__ == "__main__":
    main()
