"""Kinds for long, linked and structured texts: their time and memory on a GPU, and what they answer."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from results import RESULTS, Table, read

SPEED, TASKS = "kinds_speed.json", "kinds_tasks.json"
Run = dict[str, Any]


def lengths() -> Table:
    """Time and memory of one text by its length, full attention and hashed."""
    rows = read(SPEED)["lengths"]
    names = list(dict.fromkeys(row["attention"] for row in rows))
    found = {(row["attention"], row["tokens"]): row for row in rows}
    tokens = sorted({row["tokens"] for row in rows})
    return ("tokens", *names), [
        (f"{n:,}", *(_cell(found[name, n], "encode_ms", "encode_mb") for name in names))
        for n in tokens
    ]


def depths() -> Table:
    """A step of training by the number of layers."""
    rows = read(SPEED)["depths"]
    names = list(dict.fromkeys(row["training"] for row in rows))
    found = {(row["training"], row["layers"]): row for row in rows}
    return ("layers", *names), [
        (n, *(_cell(found[name, n], "ms", "mb") for name in names))
        for n in sorted({row["layers"] for row in rows})
    ]


def hashed() -> str:
    """One figure: the longest text."""
    return _beside(
        read(SPEED)["lengths"], "attention", "tokens", "encode_ms", "full", "lsh rounds=4"
    )


def reversible() -> str:
    """One figure: the deepest model."""
    return _beside(read(SPEED)["depths"], "training", "layers", "mb", "plain", "reversible")


def _beside(rows: list[dict[str, float]], by: str, unit: str, what: str, *names: str) -> str:
    most = max(row[unit] for row in rows)
    whole, ours = (
        next(row[what] for row in rows if row[by] == name and row[unit] == most) for name in names
    )
    said = {"ms": "ms", "mb": "MiB a step"}[what.split("_")[-1]]
    return f"{ours:,.0f} {said} at {most:,} {unit}, {names[0]} {whole:,.0f}"


def _cell(row: dict[str, float], time: str, memory: str) -> str:
    return f"{row[time]:.1f} ms, {row[memory]:,.0f} MiB"


# Tasks --------------------------------------------------------------------------------------------


def found(task: str, tokens: int | None = None) -> dict[str, list[Run]]:
    """The runs of a task by kind, one for each seed."""
    kinds: dict[str, list[Run]] = {}
    for run in read(TASKS)["runs"] if (RESULTS / TASKS).exists() else ():
        if run["task"] == task and tokens in (None, run["tokens"]):
            kinds.setdefault(run["kind"], []).append(run)
    return kinds


def spread(some: list[Run], *path: str) -> str:
    """A figure over the seeds, their number in brackets where it is not three."""
    values = [value for value in (_at(run, path) for run in some) if value is not None]
    if not values:
        return "not run"
    many = "" if len(values) == 3 else f" ({len(values)})"
    more = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{more}{many}"


def _at(run: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        run = run.get(name) if isinstance(run, dict) else None
    return run


def windows() -> Table:
    """Answers from windows of 64 tokens."""
    of = found("windows")
    words = {
        "plain": "windows alone",
        "compressive:memory=1,compressed=0": "the window before, as it is",
        "compressive:compress=mean": "one as it is, two compressed: mean",
        "compressive:compress=conv": "the same, convolution",
        "compressive:compress=most-used": "the same, most used",
        "whole": "one window of 448 tokens",
    }
    return ("SQuAD, F1", "all answers", "sentence begins in the window before"), [
        (
            said,
            spread(of.get(kind, []), "after", "f1"),
            spread(of.get(kind, []), "after", "f1_before"),
        )
        for kind, said in words.items()
    ]


def hops() -> Table:
    """Answers that need two passages."""
    of = found("hops")
    rows = [
        ("without hops", of.get("plain", []), "alone"),
        ("hops, each passage read alone", of.get("hop", []), "alone"),
        ("hops, all read together", of.get("hop", []), "together"),
    ]
    return ("two-hop questions, four passages", "F1", "exact"), [
        (said, *(spread(some, "after", how, name) for name in ("f1", "exact")))
        for said, some, how in rows
    ]


def passages() -> Table:
    """Answers from long passages."""
    rows = []
    for tokens in (512, 2048, 8192):
        for kind, said in (("plain", "full"), ("lsh:rounds=4", "lsh, 4 rounds")):
            some = found("long", tokens).get(kind, [])
            f1 = (spread(some, when, "f1") for when in ("before", "after"))
            most = max((run.get("peak_mib", 0) for run in some), default=0)
            rows.append((f"{tokens:,} tokens, {said}", *f1, f"{most:,}" if most else None))
    head = "SQuAD, paragraphs of an article as one passage"
    return (head, "F1 before", "F1 after training", "MiB to train"), rows


def trees() -> Table:
    """Headings and parses as nodes."""
    rows = []
    for task, kind, said, metric in (
        ("tree", "plain", "SQuAD under headings, F1: plain", "f1"),
        ("tree", "tree:labels=paragraph", "the same with nodes", "f1"),
        ("parses", "plain", "MNLI, accuracy: plain", "accuracy"),
        ("parses", "tree", "the same with phrases of premises as nodes", "accuracy"),
    ):
        some = found(task).get(kind, [])
        size = [f"{some[0]['after'][name]}" if some else None for name in ("passage", "nodes")]
        macs = f"{some[0]['after']['macs']['passage'] / 1e6:,.0f}" if some else None
        rows.append((said, spread(some, "after", metric), *size, macs))
    return ("", "score", "tokens", "nodes", "M MACs below the split"), rows


def beside(task: str, *named: tuple[str, str, tuple[str, ...]]) -> Callable[[], str]:
    """One figure of a task for each kind, in a sentence; nothing where one of them was not run."""

    def said() -> str:
        told = [(words, spread(found(task).get(kind, []), *path)) for words, kind, path in named]
        return "" if any(x == "not run" for _, x in told) else ", ".join(map(" ".join, told))

    return said


KINDS = {
    "kinds-lengths": lengths,
    "kinds-depths": depths,
    "kinds-windows": windows,
    "kinds-hops": hops,
    "kinds-long": passages,
    "kinds-trees": trees,
}
