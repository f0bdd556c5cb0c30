"""`demo`: the whole product on the sample passages, with nothing to set up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoupled.cli import show
from decoupled.cli.indexing import progress_bar
from decoupled.cli.runtimes import Runtime

if TYPE_CHECKING:
    from decoupled.engine import Engine


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(demo)


def demo(
    runtime: Runtime = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Index the sample passages once, answer the sample questions, time split and joint model."""
    from decoupled import bundled
    from decoupled.measure.quality import best_over

    engine = bundled.sample_engine(ready_index(runtime), runtime=runtime)
    joint = _joint_engine()
    joint.ask("warm up", texts=["a passage"])
    engine.ask("warm up")
    rows, right = [], 0
    for sample in bundled.sample_questions():
        answers = engine.ask(sample.question, 1)
        best = answers[0].text if len(answers) else "(no answer)"
        correct = best_over(sample.answers, best)[0] == 1
        right += correct
        row = {
            "question": sample.question,
            "answer": best,
            "correct": correct,
            "split_ms": answers.timing.total_ms,
        }
        row["joint_ms"] = _joint_time(engine, joint, sample.question)
        rows.append(row)
    if as_json:
        show.document({"questions": rows, "right": right})
        return
    names = ("question", "answer", "", "split ms", "joint ms")
    table = []
    for row in rows:
        cells = [row["question"], row["answer"], "right" if row["correct"] else "wrong"]
        cells += [f"{row[name]:.0f}" for name in ("split_ms", "joint_ms")]
        table.append(cells)
    show.table(names, table)
    show.note(
        f"{right} of {len(rows)} right, from {len(engine.index or ())} passages, 100 read per question"
    )
    show.note("joint: the same weights unsplit, in fp32 on openvino, reading the same 100 passages")


def ready_index(runtime: str = "auto") -> Path:
    """The index of the sample passages, built on first use."""
    from decoupled import bundled

    with (
        bundled.sample_index(runtime=runtime) as index,
        progress_bar("indexing", None) as bar,
    ):
        if not len(index):
            show.note("indexing the sample passages, once")
        index.add(bundled.sample_passages(), progress=bar.added)
        return index.path


def _joint_engine() -> Engine:
    """The same weights unsplit, for comparison."""
    from decoupled.engine import Engine
    from decoupled.folder import starter_model
    from decoupled.runtime.open import open_joint

    return Engine.over(open_joint(starter_model()))


def _joint_time(engine: Engine, joint: Engine, question: str) -> float:
    texts = engine.candidates(question)
    begun = time.perf_counter()
    joint.ask(question, 1, texts=texts)
    return (time.perf_counter() - begun) * 1e3
