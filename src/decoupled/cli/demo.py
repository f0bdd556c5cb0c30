"""`demo`: the whole product on the sample passages, with nothing to set up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoupled.cli import printing
from decoupled.cli.index import progress_bar
from decoupled.cli.runtimes import Runtime

if TYPE_CHECKING:
    from decoupled.search.engine import Engine


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(demo)


def demo(
    runtime: Runtime = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Index the sample passages once, answer the sample questions, time split and joint model."""
    from decoupled.search import starter

    path = ready_index(runtime)
    engine = starter.sample_engine(path, runtime=runtime)
    rows: list[dict[str, Any]] = []
    if as_json:
        rows += _asked(engine)
        printing.document({"questions": rows, "right": sum(row["correct"] for row in rows)})
        return

    def cells() -> Iterator[Sequence[str]]:
        for row in _asked(engine):
            rows.append(row)
            mark = "right" if row["correct"] else "wrong"
            yield row["question"], row["answer"], mark, _ms(row["split_ms"]), _ms(row["joint_ms"])

    printing.table(("question", "answer", "", "split ms", "joint ms"), cells())
    right = sum(row["correct"] for row in rows)
    split, joint = (median(row[name] for row in rows) for name in ("split_ms", "joint_ms"))
    printing.note(
        f"{right} of {len(rows)} right, from {len(engine.index or ())} passages, 100 read per question"
    )
    printing.note(
        f"median {_ms(split)} ms split, {_ms(joint)} ms joint: {joint / split:.1f} times faster"
    )
    printing.note(
        "joint: the same weights unsplit, in fp32 on openvino, reading the same 100 passages"
    )
    printing.note(f'ask it yourself: decoupled ask {quote(str(path))} "When did Nikola Tesla die?"')
    printing.note("or in a browser: decoupled serve")


def _asked(engine: Engine) -> Iterator[dict[str, Any]]:
    """The sample questions, one by one: answered from the index, and read again by the joint model."""
    from decoupled.measure.quality import best_over
    from decoupled.search import starter

    joint = _joint_engine()
    joint.ask("warm up", texts=["a passage"])
    engine.ask("warm up")
    for sample in starter.sample_questions():
        answers = engine.ask(sample.question, 1)
        best = answers[0].text if len(answers) else "(no answer)"
        yield {
            "question": sample.question,
            "answer": best,
            "correct": best_over(sample.answers, best)[0] == 1,
            "split_ms": answers.timing.total_ms,
            "joint_ms": _joint_time(engine, joint, sample.question),
        }


def _ms(value: float) -> str:
    return f"{value:.0f}"


def ready_index(runtime: str = "auto") -> Path:
    """The index of the sample passages, built on first use."""
    from decoupled.search import starter

    with (
        starter.sample_index(runtime=runtime) as index,
        progress_bar("indexing", starter.PASSAGES.stat().st_size) as bar,
    ):
        if not len(index):
            printing.note("indexing the sample passages, once")
        index.add(starter.sample_passages(on_bytes=bar.read), progress=bar.added)
        return index.path


def _joint_engine() -> Engine:
    """The same weights unsplit, for comparison."""
    from decoupled.model.folder import starter_model
    from decoupled.runtime.open import open_joint
    from decoupled.search.engine import Engine

    return Engine.over(open_joint(starter_model()))


def _joint_time(engine: Engine, joint: Engine, question: str) -> float:
    texts = engine.candidates(question)
    begun = time.perf_counter()
    joint.ask(question, 1, texts=texts)
    return (time.perf_counter() - begun) * 1e3
