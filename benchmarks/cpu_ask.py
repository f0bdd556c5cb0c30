"""`ask` over 100 candidates with the starter model against the joint model that reads the same 100.

    python benchmarks/cpu_ask.py --questions 9 --json benchmarks/results/cpu_ask.json

Whole calls, from the question to the answer, over the sample index: split from stored codes on OpenVINO, the
same weights unsplit on torch in fp32 and on OpenVINO in fp32. Rounds are interleaved; figures are medians, in
wall time and in processor time (which other programs on the machine disturb less).
"""

import os
import time

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import numpy as np

import decoupled as dc
from bench_report import options, write_report
from decoupled.model.folder import starter_model
from decoupled.model.spec import unsplit
from decoupled.model.states import Ragged
from decoupled.runtime.open import open_joint
from decoupled.runtime.torch import TorchRuntime
from decoupled.search.starter import sample_questions


class Padded(TorchRuntime):
    """Batches of 32 in no order of length, padded to the longest, as a plain loop over candidates does it."""

    token_budget = 10**9

    def cross(self, query, passages, heads):
        """Logits in the given order."""
        order = np.random.default_rng(0).permutation(len(passages))
        batches = (passages.select(order[at : at + 32]) for at in range(0, len(order), 32))
        parts = [super(Padded, self).cross(query, batch, heads) for batch in batches]
        back = np.argsort(order)
        return {kind: Ragged.concat([p[kind] for p in parts]).select(back) for kind in heads}


def main() -> None:
    """Time each, print and write the medians."""
    args = options(__doc__, questions=5)
    engine = dc.open()
    whole = dc.Model.load(starter_model())
    joint = whole.rebuild(unsplit(whole.spec), {"did": "unsplit"})
    readers = {
        "joint, torch fp32": dc.Engine(joint),
        "joint, OpenVINO fp32": dc.Engine(open_joint(starter_model())),
        "joint, torch fp32, padded batches of 32": dc.Engine(Padded(joint)),
    }
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ("split", *readers)}
    for sample in sample_questions()[: args.questions + 1]:
        texts = engine.candidates(sample.question)
        for name, rows in spent.items():
            wall, processor = time.perf_counter(), time.process_time()
            given = {"texts": texts} if name in readers else {}
            readers.get(name, engine).ask(sample.question, 1, **given)
            rows.append((time.perf_counter() - wall, time.process_time() - processor))
    # The first question warms up.
    median = {name: 1e3 * np.median(rows[1:], 0) for name, rows in spent.items()}
    found = {"candidates": 100, "questions": args.questions}
    found |= {"precision": engine.runtime.precision, "load": os.getloadavg()[0]}
    for number, clock in enumerate(("wall", "processor")):
        times = {name: float(value[number]) for name, value in median.items()}
        found[f"{clock}_ms"] = {name: round(t, 1) for name, t in times.items()}
        found[f"{clock}_ratio"] = {name: round(t / times["split"], 1) for name, t in times.items()}
    write_report(args, found)


if __name__ == "__main__":
    main()
