"""Tables and a picture of a race."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SPEED = ("contender", "p50 ms", "p95 ms", "pairs/s", "faster", "memory")
RATES = ("contender", "arithmetic", "GFLOP", "GFLOP/s", "of ceiling")

Row = dict[str, Any]


def machine() -> dict[str, Any]:
    """What is needed to repeat the race."""
    packages = (
        *("decoupled-transformer", "torch", "openvino", "nncf"),
        *("onnxruntime", "sentence-transformers", "transformers"),
    )
    found: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A title, columns, and rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(rows: Sequence[Row]) -> list[Table]:
    """Times for each shape and number of passages, the slowest first, then arithmetic for each."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: -row.get("p50_ms", 0.0)):
        groups.setdefault((row["shape"], row["top"]), []).append(row)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], group[0][1]))
    made = []
    for (shape, top), group in ordered:
        times = tuple(_speed(row) for row in group if "p50_ms" in row)
        title = f"{shape}, {top} passages: query text in, best ids out"
        made.append(Table(title=title, columns=SPEED, rows=times))
    for (shape, top), group in ordered:
        rates = tuple(_arithmetic(row) for row in group if "gflops" in row)
        title = f"{shape}, {top} passages: arithmetic of reading the pairs"
        made.append(Table(title=title, columns=RATES, rows=rates))
    return [table for table in made if table.rows]


def skipped(rows: Sequence[Row]) -> list[str]:
    """Who did not race, and why, one line for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "skipped" in row:
            where = reasons.setdefault((row["contender"], row["skipped"]), [])
            where.append(f"{row['shape']} {row['top']}")
    return [f"skipped {name} ({', '.join(at)}): {why}" for (name, why), at in reasons.items()]


def _speed(row: Row) -> tuple[str, ...]:
    saved = f", {row['memory_saved']:.0%} less" if row.get("memory_saved", 0) > 0 else ""
    return (
        row["contender"],
        f"{row['p50_ms']:.1f}",
        f"{row['p95_ms']:.1f}",
        f"{row['pairs_per_s']:.0f}",
        f"{row['speedup']:.1f}x" if "speedup" in row else "",
        f"{row.get('query_bytes', 0) / 1e6:.0f} MB{saved}",
    )


def _arithmetic(row: Row) -> tuple[str, ...]:
    share = f"{row['of_ceiling']:.0%}" if "of_ceiling" in row else "–"
    numbers = f"{row['gflop']:.1f}", f"{row['gflops']:.0f}", share
    return (row["contender"], row["arithmetic"], *numbers)


def ceiling_line(ceilings: dict[str, Any]) -> str:
    """The ceilings in words."""
    kinds = (k for k in ("fp32", "bf16", "int8") if k in ceilings)
    said = (
        f"{k} {ceilings[k]:.0f} GFLOP/s"
        if isinstance(ceilings[k], float)
        else f"{k}: {ceilings[k]}"
        for k in kinds
    )
    return "fastest matrix products measured: " + "; ".join(said)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Milliseconds a query over the number of passages, both on log scales, a panel for each shape."""
    from matplotlib.figure import Figure

    from decoupled.lab.report.picture import SHAPES
    from decoupled.lab.report.svg import COLOURS, shape_of

    raced = [row for row in rows if "p50_ms" in row]
    shapes, names = (
        list(dict.fromkeys(row[key] for row in raced)) for key in ("shape", "contender")
    )
    ticks = sorted({row["top"] for row in raced})
    figure = Figure(figsize=(4.5 * len(shapes) + 2, 5), dpi=130, layout="constrained")
    panels = figure.subplots(1, len(shapes), sharey=True, squeeze=False)[0]
    drawn: dict[str, Any] = {}
    for panel, shape in zip(panels, shapes, strict=True):
        for number, name in enumerate(names):
            here = sorted(
                (row["top"], row["p50_ms"], row["p95_ms"])
                for row in raced
                if (row["shape"], row["contender"]) == (shape, name)
            )
            if not here:
                continue
            tops, p50, p95 = zip(*here, strict=True)
            style = "-" if name.startswith("decoupled") else "--"
            colour, marker = COLOURS[number % len(COLOURS)], SHAPES[shape_of(number)]
            (drawn[name],) = panel.plot(tops, p50, style, color=colour, marker=marker)
            panel.fill_between(tops, p50, p95, color=colour, alpha=0.12)
        panel.set(xscale="log", yscale="log", title=shape, xlabel="passages")
        panel.set_xticks(ticks, [str(top) for top in ticks])
        panel.minorticks_off()
        panel.grid(True, which="both", alpha=0.25)
    panels[0].set_ylabel("milliseconds a query, p50 (shaded up to p95)")
    figure.legend([drawn[name] for name in names], names, loc="outside right upper", fontsize=8)
    figure.savefig(path)
