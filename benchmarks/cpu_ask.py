"""`ask` over 100 candidates with the starter model against the joint model that reads the same 100.

    python benchmarks/cpu_ask.py --questions 9 --json benchmarks/results/cpu_ask.json

Whole calls, from the question to the answer, over the sample index: split from stored codes on OpenVINO in
int8, the same weights unsplit in int8 and in fp32 there, and on torch in fp32. All of them read texts of like
length together. Rounds are interleaved; figures are medians, in wall time and in processor time (which other
programs on the machine disturb less).
"""

import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import numpy as np

import decoupled as dc
from bench_report import options, write_report
from decoupled.model.folder import starter_model
from decoupled.model.spec import unsplit
from decoupled.runtime.open import open_joint
from decoupled.runtime.openvino.calibrate import export_int8
from decoupled.search.starter import sample_questions


def main() -> None:
    """Time each, print and write the medians."""
    args = options(__doc__, questions=5)
    with tempfile.TemporaryDirectory() as folder:
        write_report(args, race(args.questions, Path(folder)))


def race(questions: int, work: Path) -> dict[str, object]:
    """Medians over the questions; one more, the first, warms up."""
    engine = dc.open()
    whole = dc.Model.load(starter_model())
    joint = whole.rebuild(unsplit(whole.spec), {"did": "unsplit"})
    joint.save(work / "joint")
    asked = sample_questions()[: questions + 1]
    candidates = {one.question: engine.candidates(one.question) for one in asked}
    export_int8(
        work / "joint", [(q, text.text) for q, found in candidates.items() for text in found]
    )
    readers = {
        "joint, OpenVINO int8": dc.Engine(work / "joint", runtime="openvino-int8"),
        "joint, OpenVINO fp32": dc.Engine(open_joint(starter_model())),
        "joint, torch fp32": dc.Engine(joint),
    }
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ("split", *readers)}
    for question, texts in candidates.items():
        for name, rows in spent.items():
            wall, processor = time.perf_counter(), time.process_time()
            given = {"texts": texts} if name in readers else {}
            readers.get(name, engine).ask(question, 1, **given)
            rows.append((time.perf_counter() - wall, time.process_time() - processor))
    median = {name: 1e3 * np.median(rows[1:], 0) for name, rows in spent.items()}
    found: dict[str, object] = {"candidates": 100, "questions": len(asked) - 1}
    found |= {"precision": engine.runtime.precision, "load": os.getloadavg()[0]}
    for number, clock in enumerate(("wall", "processor")):
        times = {name: float(value[number]) for name, value in median.items()}
        found[f"{clock}_ms"] = {name: round(t, 1) for name, t in times.items()}
        found[f"{clock}_ratio"] = {name: round(t / times["split"], 1) for name, t in times.items()}
    return found


if __name__ == "__main__":
    main()
