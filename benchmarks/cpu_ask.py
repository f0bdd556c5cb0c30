"""`ask` over 100 candidates with the starter model against the joint model that reads the same 100.

    python benchmarks/cpu_ask.py [--questions 5] [--out benchmarks/results/cpu_ask.json]

Whole calls, from the question to the answer, over the sample index: split from stored codes on OpenVINO, the
same weights unsplit on torch in fp32 and on OpenVINO in fp32. Rounds are interleaved; figures are medians, in
wall time and in processor time (which other programs on the machine disturb less).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import numpy as np

from decoupled.model.folder import starter_model
from decoupled.model.model import Model
from decoupled.model.spec import unsplit
from decoupled.model.states import Ragged
from decoupled.runtime.open import open_joint
from decoupled.runtime.torch import TorchRuntime
from decoupled.search import starter
from decoupled.search.engine import Engine


class Padded(TorchRuntime):
    """Batches of 32 in no order of length, padded to the longest, as a plain loop over candidates does it."""

    def cross(self, query, passages, heads):
        """Logits in the given order."""
        order = np.random.default_rng(0).permutation(len(passages))
        parts = [
            super(Padded, self).cross(query, passages.select(order[start : start + 32]), heads)
            for start in range(0, len(passages), 32)
        ]
        back = np.argsort(order)
        return {kind: Ragged.concat([p[kind] for p in parts]).select(back) for kind in heads}

    @property
    def token_budget(self) -> int:
        """Everything in one call."""
        return 10**9


def main() -> None:
    """Time each, print and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    engine = starter.open()
    whole = Model.load(starter_model())
    joint = whole.rebuild(unsplit(whole.spec), {"did": "unsplit"})
    reading = {
        "joint, torch fp32": Engine(joint),
        "joint, OpenVINO fp32": Engine(open_joint(starter_model())),
    }
    reading["joint, torch fp32, padded batches of 32"] = Engine(Padded(joint))
    spent: dict[str, list[tuple[float, float]]] = {}

    def timed(name, call, *, keep):
        wall, processor = time.perf_counter(), time.process_time()
        call()
        if keep:
            took = (time.perf_counter() - wall, time.process_time() - processor)
            spent.setdefault(name, []).append((took[0] * 1e3, took[1] * 1e3))

    questions = [sample.question for sample in starter.sample_questions()][: args.questions + 1]
    for number, question in enumerate(questions):
        texts, keep = engine.candidates(question), number > 0
        timed("split", lambda q=question: engine.ask(q, 1), keep=keep)
        for name, other in reading.items():
            call = lambda q=question, e=other, t=texts: e.ask(q, 1, texts=t)  # noqa: E731
            timed(name, call, keep=keep)
    median = {name: np.median(rows, 0) for name, rows in spent.items()}
    found = {
        "candidates": 100,
        "questions": args.questions,
        "precision": engine.runtime.precision,
        "load": os.getloadavg()[0],
        "wall_ms": {name: round(float(v[0]), 1) for name, v in median.items()},
        "processor_ms": {name: round(float(v[1]), 1) for name, v in median.items()},
        "wall_ratio": {n: round(float(v[0] / median["split"][0]), 1) for n, v in median.items()},
        "processor_ratio": {
            n: round(float(v[1] / median["split"][1]), 1) for n, v in median.items()
        },
    }
    print(json.dumps(found, indent=1))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
