"""`demo` and `doctor`: the whole product with nothing to set up, and what this machine can run of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from statistics import median
from typing import Any

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing


def demo(runtime: opt.Runtime = "auto", as_json: opt.Json = False) -> None:
    """Index the sample passages once, answer the sample questions, time split and joint model."""
    from decoupled.search import starter

    path = sample_index(runtime)
    engine = starter.sample_engine(path, runtime=runtime)
    rows: list[dict[str, Any]] = []
    if as_json:
        rows += dc.demo(engine)
        printing.document({"questions": rows, "right": sum(row["correct"] for row in rows)})
        return

    def cells() -> Iterator[Sequence[str]]:
        for row in dc.demo(engine):
            rows.append(row)
            mark = "right" if row["correct"] else "wrong"
            times = f"{row['split_ms']:.0f}", f"{row['joint_ms']:.0f}"
            yield row["question"], row["answer"], mark, *times

    printing.table(("question", "answer", "", "split ms", "joint ms"), cells())
    right, count = sum(row["correct"] for row in rows), len(engine.index or ())
    split, joint = (median(row[name] for row in rows) for name in ("split_ms", "joint_ms"))
    for line in (
        f"{right} of {len(rows)} right, from {count} passages, 100 read per question",
        f"median {split:.0f} ms split, {joint:.0f} ms joint: {joint / split:.1f} times faster",
        "joint: the same weights unsplit, in fp32 on openvino, reading the same 100 passages",
        f'ask it yourself: decoupled ask {quote(str(path))} "When did Nikola Tesla die?"',
        "or in a browser: decoupled serve",
    ):
        printing.note(line)


def doctor(as_json: opt.Json = False) -> None:
    """Say what this machine can run, and what to install for the rest."""
    printing.result(dc.doctor(), as_json, _show_machine)


def _show_machine(facts: dict[str, dict[str, Any]]) -> None:
    printing.facts([*facts["machine"].items(), *facts["packages"].items()])
    printing.table(("runtime", "state"), list(facts["runtimes"].items()))
    printing.table(("command", "state"), list(facts["commands"].items()))


def sample_index(runtime: str = "auto") -> Path:
    """The index of the sample passages, built on first use."""
    from decoupled.search import starter

    with (
        starter.sample_index(runtime=runtime) as index,
        printing.progress_bar("indexing", starter.PASSAGES.stat().st_size) as bar,
    ):
        if not len(index):
            printing.note("indexing the sample passages, once")
        index.add(starter.sample_passages(on_bytes=bar.add), progress=bar.added)
        return index.path
