"""`demo`: the sample questions, answered from the index and read again by the joint model."""

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from decoupled.measure.metrics import best_over
from decoupled.model.folder import starter_model
from decoupled.runtime.open import open_joint
from decoupled.search import starter
from decoupled.search.engine import Engine


def demo(engine: Engine | None = None, *, runtime: str = "auto") -> Iterator[dict[str, Any]]:
    """Each sample question as it is answered: the answer, whether it is right, the time of split and joint.

    The time of the split model is the median of three runs, since the joint model that ran before has emptied
    the caches. `engine` defaults to `open()`, whose model reads only the most promising of 100 candidates.
    The joint model, the same weights unsplit in fp32 on OpenVINO, reads all 100.
    """
    engine = engine or starter.open(runtime=runtime)
    joint = Engine(open_joint(starter_model()))
    joint.ask("warm up", texts=["a passage"])
    engine.ask("warm up")
    times: list[float] = []
    for sample in starter.sample_questions():
        for _ in range(3):
            answers = engine.ask(sample.question, 1)
            times.append(answers.timing.total_ms)
        best = answers[0].text if len(answers) else "(no answer)"
        # Before the clock starts: the time of the joint model is that of reading alone.
        texts = engine.candidates(sample.question)
        begun = time.perf_counter()
        joint.ask(sample.question, 1, texts=texts)
        yield {
            "question": sample.question,
            "answer": best,
            "correct": best_over(sample.answers, best)[0] == 1,
            "split_ms": median(times[-3:]),
            "joint_ms": (time.perf_counter() - begun) * 1e3,
        }


def demo_cells(row: dict[str, Any]) -> Sequence[str]:
    """A question as a row of a table: what was answered, whether that is right, and both times."""
    mark = "right" if row["correct"] else "wrong"
    return row["question"], row["answer"], mark, f"{row['split_ms']:.0f}", f"{row['joint_ms']:.0f}"


def demo_lines(rows: Sequence[dict[str, Any]], passages: int) -> list[str]:
    """Lines for a terminal: how many answers are right, and how fast both models are."""
    right = sum(row["correct"] for row in rows)
    split, joint = (median(row[name] for row in rows) for name in ("split_ms", "joint_ms"))
    return [
        f"{right} of {len(rows)} right, from {passages} passages, 100 candidates a question",
        f"median {split:.0f} ms split, {joint:.0f} ms joint: {joint / split:.1f} times faster",
        "split: late interaction leaves a few of them to read; joint: the same weights unsplit, in fp32 on "
        "openvino, reading all 100",
    ]
