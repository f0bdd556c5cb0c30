"""Tables and a picture of a race."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999933")
"""Okabe and Ito's palette, told apart with any colour vision; markers differ as well."""
MARKERS = "osD^vPX*"

SPEED = ("shape", "passages", "contender", "p50 ms", "p95 ms", "pairs/s", "times faster", "memory")
RATES = ("shape", "passages", "contender", "arithmetic", "GFLOP", "GFLOP/s", "of ceiling")

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


def speed_rows(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The table of times: who raced, fastest last, and why others did not."""
    shown: list[tuple[str, ...]] = []
    for row in sorted(rows, key=lambda r: (r["shape"], r["top"], -r.get("p50_ms", 1e12))):
        head = (row["shape"], str(row["top"]), row["contender"])
        if "p50_ms" not in row:
            shown.append((*head, "–", "–", "–", f"skipped: {row['skipped']}", ""))
            continue
        faster = f"{row['speedup']:.1f}x" if "speedup" in row else ""
        used = row.get("query_bytes", 0) / 1e6
        saved = f", {row['memory_saved']:.0%} less" if row.get("memory_saved", 0) > 0 else ""
        times = f"{row['p50_ms']:.1f}", f"{row['p95_ms']:.1f}", f"{row['pairs_per_s']:.0f}"
        shown.append((*head, *times, faster, f"{used:.0f} MB{saved}"))
    return shown


def rate_rows(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The table of arithmetic: how near each comes to the matrix products of the machine."""
    shown: list[tuple[str, ...]] = []
    for row in sorted(rows, key=lambda r: (r["shape"], r["top"], r["contender"])):
        if "gflops" in row:
            share = f"{row['of_ceiling']:.0%}" if "of_ceiling" in row else "–"
            numbers = f"{row['gflop']:.1f}", f"{row['gflops']:.0f}", share
            head = row["shape"], str(row["top"]), row["contender"], row["arithmetic"]
            shown.append((*head, *numbers))
    return shown


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
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    raced = [row for row in rows if "p50_ms" in row]
    shapes = list(dict.fromkeys(row["shape"] for row in raced))
    names = list(dict.fromkeys(row["contender"] for row in raced))
    figure, panels = pyplot.subplots(
        1, len(shapes), figsize=(4.5 * len(shapes) + 2, 5), sharey=True, squeeze=False
    )
    for panel, shape in zip(panels[0], shapes, strict=True):
        for number, name in enumerate(names):
            here = sorted(
                (row["top"], row["p50_ms"], row["p95_ms"])
                for row in raced
                if (row["shape"], row["contender"]) == (shape, name)
            )
            if not here:
                continue
            tops, p50, p95 = zip(*here, strict=True)
            style = {
                "color": COLOURS[number % len(COLOURS)],
                "marker": MARKERS[number % len(MARKERS)],
            }
            dashes = "-" if name.startswith("decoupled") else "--"
            panel.plot(tops, p50, dashes, label=name, **style)
            panel.fill_between(tops, p50, p95, color=style["color"], alpha=0.12)
        panel.set(xscale="log", yscale="log", title=shape, xlabel="passages")
        panel.grid(True, which="both", alpha=0.25)
    panels[0][0].set_ylabel("milliseconds a query, p50 (shaded up to p95)")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
