"""Tables and a picture of a race."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from decoupled.lab.report.figure import Axis, Bar, Bars
from decoupled.measure.table import ResultTable

SPEED = ("contender", "p50 ms", "p95 ms", "pairs/s", "faster", "memory")
RATES = ("contender", "arithmetic", "GFLOP", "GFLOP/s", "of ceiling")

Row = dict[str, Any]


def machine() -> dict[str, Any]:
    """What is needed to repeat the race."""
    packages = (
        *("decoupled-transformer", "torch", "openvino", "nncf"),
        *("onnxruntime", "sentence-transformers", "transformers"),
    )
    facts: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }
    for package in packages:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = None
    return facts


def commit(root: Path | None = None) -> str | None:
    """What results belong to: `COMMIT` says it of a copy without git, git of a checkout; else None."""
    if root is None and (named := os.environ.get("COMMIT")):
        return named
    root = root or Path(__file__).resolve().parents[4]
    if not (root / "src" / "decoupled").is_dir():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")


def tables(rows: Sequence[Row]) -> list[ResultTable]:
    """Times for each shape and number of passages, the slowest first, then arithmetic for each."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: -row.get("p50_ms", 0.0)):
        groups.setdefault((row["shape"], row["top"]), []).append(row)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], group[0][1]))
    drawn = []
    for (shape, top), group in ordered:
        times = tuple(_speed(row) for row in group if "p50_ms" in row)
        title = f"{shape}, {top} passages: query text in, best ids out"
        drawn.append(ResultTable(title=title, columns=SPEED, rows=times))
    for (shape, top), group in ordered:
        rates = tuple(_arithmetic(row) for row in group if "gflops" in row)
        title = f"{shape}, {top} passages: arithmetic of reading the pairs"
        drawn.append(ResultTable(title=title, columns=RATES, rows=rates))
    return [table for table in drawn if table.rows]


def skipped(rows: Sequence[Row]) -> list[str]:
    """Who did not race, and why, one line for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "skipped" in row:
            where = reasons.setdefault((row["contender"], row["skipped"]), [])
            where.append(f"{row['shape']} {row['top']}")
    return [f"skipped {name} ({', '.join(at)}): {why}" for (name, why), at in reasons.items()]


def _speed(row: Row) -> tuple[str, ...]:
    whole = f"{row['peak_bytes'] / 1e6:.0f} MB, " if "peak_bytes" in row else ""
    return (
        row["contender"],
        f"{row['p50_ms']:.1f}",
        f"{row['p95_ms']:.1f}",
        f"{row['pairs_per_s']:.0f}",
        f"{row['speedup']:.1f}x" if "speedup" in row else "",
        f"{whole}{row.get('query_bytes', 0) / 1e6:.0f} by the query",
    )


def _arithmetic(row: Row) -> tuple[str, ...]:
    share = f"{row['of_ceiling']:.0%}" if "of_ceiling" in row else "–"
    numbers = f"{row['gflop']:.1f}", f"{row['gflops']:.0f}", share
    return (row["contender"], row["arithmetic"], *numbers)


def ceiling_line(ceilings: dict[str, Any]) -> str:
    """The ceilings in words."""
    kinds = (k for k in ("fp32", "bf16", "int8") if k in ceilings)
    rates = (
        f"{k} {ceilings[k]:.0f} GFLOP/s"
        if isinstance(ceilings[k], float)
        else f"{k}: {ceilings[k]}"
        for k in kinds
    )
    return "fastest matrix products measured: " + "; ".join(rates)


# Pictures -----------------------------------------------------------------------------------------


def figures(rows: Sequence[Row]) -> list[Bars]:
    """One bar chart for each question: a shape and a number of passages, the quickest first."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.get("p50_ms") or 0.0):
        if row.get("p50_ms"):
            groups.setdefault((row["shape"], row["top"]), []).append(row)
    order = dict.fromkeys((row["shape"], row["top"]) for row in rows)
    return [
        Bars(
            name=f"peers-{shape.lower()}-{top}",
            title=f"Milliseconds of a query: {shape}, {top} passages",
            caption="Medians of queries in turns, as many as each bar says.",
            x=Axis(title="milliseconds", zero=True, unit=" ms"),
            bars=tuple(
                Bar(
                    name=row["contender"],
                    value=row["p50_ms"],
                    note=_note(row),
                    group="ours" if row["contender"].startswith("decoupled") else "",
                )
                for row in groups[shape, top]
            ),
        )
        for shape, top in order
        if (shape, top) in groups
    ]


def _note(row: Row) -> str:
    times = f"{row['speedup']:.1f} times {row['baseline']}" if "speedup" in row else ""
    turns = f"{row['turns']} queries" if "turns" in row else ""
    spread = f"p95 {row['p95_ms']:.1f} ms" if "p95_ms" in row else ""
    return ", ".join(part for part in (turns, spread, times) if part)


def plot(rows: Sequence[Row], path: Path) -> None:
    """The bar chart of each question, one below the other."""
    from decoupled.lab.report.draw import save

    save(figures(rows), path)
