"""`demo`: the whole product on the sample passages, with nothing to set up."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoupled.cli import show
from decoupled.cli.indexing import progress_bar

if TYPE_CHECKING:
    from decoupled.engine import Engine


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(demo)


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Index the sample passages once, answer the sample questions, time split and joint model."""
    from decoupled import bundled
    from decoupled.engine import Engine
    from decoupled.measure.quality import best_over

    engine = Engine(ready_index())
    joint = _joint_engine()
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
        if joint is not None:
            row["joint_ms"] = _joint_time(engine, joint, sample.question)
        rows.append(row)
    if as_json:
        show.document({"questions": rows, "right": right})
        return
    names = ("question", "answer", "", "split ms") + (("joint ms",) if joint else ())
    table = []
    for row in rows:
        cells = [row["question"], row["answer"], "right" if row["correct"] else "wrong"]
        cells += [f"{row[name]:.0f}" for name in ("split_ms", "joint_ms") if name in row]
        table.append(cells)
    show.table(names, table)
    show.note(
        f"{right} of {len(rows)} right, from {len(engine.index or ())} passages, 100 read per question"
    )
    if joint is not None:
        show.note("joint: the same model unsplit, reading the same 100 passages")


def ready_index() -> Path:
    """The index of the sample passages, built on first use."""
    from decoupled import bundled

    with bundled.sample_index() as index, progress_bar("indexing", None) as bar:
        if not len(index):
            show.note("indexing the sample passages, once")
        index.add(bundled.sample_passages(), progress=bar.added)
        return index.path


def _joint_engine() -> Engine | None:
    """The same weights unsplit, for comparison; None where torch is not installed."""
    if find_spec("torch") is None:
        return None
    from decoupled.engine import Engine
    from decoupled.folder import starter_model
    from decoupled.model import Model

    return Engine(Model.split(str(starter_model()), at=0))


def _joint_time(engine: Engine, joint: Engine, question: str) -> float:
    texts = engine.candidates(question)
    begun = time.perf_counter()
    joint.ask(question, 1, texts=texts)
    return (time.perf_counter() - begun) * 1e3
