"""Kinds for long texts: their time and memory on a GPU."""

from __future__ import annotations

from results import Table, read

SPEED = "kinds_speed.json"


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


KINDS = {"kinds-lengths": lengths, "kinds-depths": depths}
