"""What a race leaves: a file of cells that grows, the rows that compare them, tables and pictures."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from decoupled.errors import InputError
from decoupled.lab.bench import contenders
from decoupled.lab.bench.shapes import PASSAGE_TOKENS, QUERY_TOKENS, Shape, shape_named
from decoupled.lab.report.figure import Axis, Bar, Bars
from decoupled.measure.table import ResultTable
from decoupled.runtime.cpu import installed_version

SPEED = ("contender", "p50 ms", "p95 ms", "pairs/s", "faster", "memory")
RATES = ("contender", "arithmetic", "GFLOP", "GFLOP/s")
PACKAGES = (
    *("decoupled-transformer", "torch", "openvino", "nncf"),
    *("onnxruntime", "sentence-transformers", "transformers"),
)

Json = dict[str, Any]


def machine() -> dict[str, Any]:
    """What is needed to repeat the race."""
    facts: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }
    return facts | {package: installed_version(package) for package in PACKAGES}


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


# Cells -------------------------------------------------------------------------------------------


@dataclass
class Results:
    """Cells by name, in a file that is rewritten whole whenever one is added."""

    path: Path | None
    data: Json = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | None) -> Results:
        """What an earlier run left there, or nothing."""
        if path is None or not path.exists():
            return cls(path, {"cells": {}})
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            data["cells"].items()
        except (ValueError, KeyError, AttributeError, TypeError):
            raise InputError(f"{path} holds no results of `bench`; name another file") from None
        return cls(path, data)

    def describe(self, preset: str, machine: Json, **setting: Any) -> None:
        """What a report needs to know of the file; times of another setting stay in a file of their own.

        `setting` is the device, the number of threads and the commit, None where that is not known.
        """
        if self.data["cells"]:  # those of a file that names no commit may be of any
            self.data.setdefault("commit", None)
        recorded = {**self.data.get("ceiling", {}), **self.data.get("machine", {}), **self.data}
        for name, value in {**setting, "processor": machine.get("processor")}.items():
            if recorded.get(name, value) != value:
                raise InputError(
                    f"{self.path} holds times of {name}={recorded[name]!r}, and this race has "
                    f"{name}={value!r}; name another file"
                )
        command = f"decoupled lab bench --preset {preset}"
        about = {"kind": "bench", "command": command, "preset": preset}
        now = {**setting, "machine": machine}
        self.data = {**about, **now, **self.data, **now}

    def has(self, key: str) -> bool:
        """Was the cell raced to its end? One that was skipped or cut off is tried again."""
        cell = self.data["cells"].get(key, {})
        return "p50_ms" in cell and not cell.get("unfinished")

    def put(self, key: str, cell: Json) -> None:
        """Add a cell and save."""
        self.data["cells"][key] = cell
        self.save()

    def skip(self, key: str, reason: str) -> None:
        """Say why a cell is empty; one that was raced before keeps its times."""
        if not self.has(key):
            self.put(key, {"skipped": reason})

    def save(self) -> None:
        """Write the file in one step."""
        if self.path is None:
            return
        fresh = self.path.with_name(f".{self.path.name}.new")
        fresh.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.path)


def key_of(shape: str, top: int, name: str) -> str:
    """The name of a cell."""
    return f"{shape} | {top} | {name}"


# Rows ---------------------------------------------------------------------------------------------


def compare(results: Results) -> list[Json]:
    """A row for each cell, with its ratio to the baseline of the same shape and number of passages."""
    cells, rows = results.data["cells"], []
    for key, cell in cells.items():
        shape, top, name = key.split(" | ")
        facts = {field: value for field, value in cell.items() if field != "times_ms"}
        row: Json = {"shape": shape, "top": int(top), "contender": name, **facts}
        for baseline in contenders.BASELINES:
            base = cells.get(key_of(shape, int(top), baseline), {})
            if "p50_ms" in base and "p50_ms" in cell:
                row |= {"baseline": baseline, "speedup": _ratio(base, cell)}
                if cell.get("peak_bytes") and base.get("peak_bytes"):
                    row["memory_saved"] = round(1 - cell["peak_bytes"] / base["peak_bytes"], 3)
                break
        rows.append(row | _rate(row))
    return rows


def _ratio(base: Json, cell: Json) -> float:
    """The median over turns that both took, so that a slow minute counts for neither."""
    both = zip(base["times_ms"], cell["times_ms"], strict=False)
    return round(float(np.median([b / c for b, c in both])), 2)


def _rate(row: Json) -> Json:
    """FLOP/s of the part that reads pairs."""
    name = row["contender"]
    way = contenders.OURS.get(name, ("", "joint"))[1]
    countable = way in ("exact", "one-way", "joint") and name not in contenders.OWN_SHAPE
    if "p50_ms" not in row or row["shape"] not in contenders.RACED or not countable:
        return {}
    shape, milliseconds = shape_named(row["shape"]), row["p50_ms"]
    if way == "joint":
        flops = row["top"] * joint_flops(shape, QUERY_TOKENS + PASSAGE_TOKENS)
    else:
        pair = query_flops(shape, QUERY_TOKENS, PASSAGE_TOKENS, one_way=way == "one-way")
        flops = row["top"] * pair
        milliseconds = row.get("stages_ms", {}).get("cross_ms", milliseconds)
    rate = flops / milliseconds / 1e6
    kind = contenders.arithmetic(name, row)
    return {"gflop": round(flops / 1e9, 2), "gflops": round(rate, 1), "arithmetic": kind}


# Arithmetic in FLOPs: matrix products of the layers, two for a multiplication with its sum -------


def layer_flops(shape: Shape, tokens: int, rows: int) -> int:
    """One layer that computes `rows` of `tokens`: keys and values of all, the rest of its rows."""
    layer = shape.encoder().layers[0]
    return 2 * layer.macs(shape.width, rows=rows, tokens=tokens)


def joint_flops(shape: Shape, tokens: int) -> int:
    """One pair through the whole encoder, every row of every layer, as joint models compute it."""
    return shape.layers * layer_flops(shape, tokens, tokens)


def query_flops(shape: Shape, query: int, passage: int, *, one_way: bool) -> int:
    """One pair through the cross component of a ranking model; the last layer computes one row."""
    tokens, last = query + passage, shape.layers - 1
    rows = query if one_way else tokens
    before = (last - shape.split) * layer_flops(shape, tokens, rows)
    return before + layer_flops(shape, tokens, 1)


# Tables -------------------------------------------------------------------------------------------


def tables(rows: Sequence[Json]) -> list[ResultTable]:
    """Times for each shape and number of passages, the slowest first, then arithmetic for each."""
    times, rates = [], []
    for (shape, top), group in sorted(grouped(rows).items()):
        slowest = group[::-1]
        title = f"{shape}, {top} passages: query text in, best ids out"
        times.append(ResultTable(title=title, columns=SPEED, rows=list(map(_speed, slowest))))
        title = f"{shape}, {top} passages: arithmetic of reading the pairs"
        counted = [_arithmetic(row) for row in slowest if "gflops" in row]
        rates.append(ResultTable(title=title, columns=RATES, rows=counted))
    return [table for table in (*times, *rates) if table.rows]


def grouped(rows: Sequence[Json]) -> dict[tuple[str, int], list[Json]]:
    """Rows that have a time by their shape and number of passages, the quickest first."""
    groups: dict[tuple[str, int], list[Json]] = {}
    for row in rows:
        if row.get("p50_ms"):
            groups.setdefault((row["shape"], row["top"]), []).append(row)
    return {key: sorted(group, key=lambda row: row["p50_ms"]) for key, group in groups.items()}


def skipped(rows: Sequence[Json]) -> list[str]:
    """Who did not race, and why, one line for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "skipped" in row:
            where = reasons.setdefault((row["contender"], row["skipped"]), [])
            where.append(f"{row['shape']} {row['top']}")
    return [f"skipped {name} ({', '.join(at)}): {why}" for (name, why), at in reasons.items()]


def _speed(row: Json) -> tuple[str, ...]:
    whole = f"{row['peak_bytes'] / 1e6:.0f} MB, " if "peak_bytes" in row else ""
    return (
        row["contender"],
        f"{row['p50_ms']:.1f}",
        f"{row['p95_ms']:.1f}",
        f"{row['pairs_per_s']:.0f}",
        f"{row['speedup']:.1f}x" if "speedup" in row else "",
        f"{whole}{row.get('query_bytes', 0) / 1e6:.0f} by the query",
    )


def _arithmetic(row: Json) -> tuple[str, ...]:
    return row["contender"], row["arithmetic"], f"{row['gflop']:.1f}", f"{row['gflops']:.0f}"


# Pictures -----------------------------------------------------------------------------------------


def figures(rows: Sequence[Json]) -> list[Bars]:
    """One bar chart for each shape and number of passages, the quickest first."""
    return [
        Bars(
            name=f"peers-{shape.lower()}-{top}",
            title=f"Milliseconds of a query: {shape}, {top} passages",
            caption="Medians of queries in turns, as many as each bar says.",
            x=Axis(title="milliseconds", zero=True, unit=" ms"),
            bars=tuple(map(_bar, group)),
        )
        for (shape, top), group in grouped(rows).items()
    ]


def _bar(row: Json) -> Bar:
    name = row["contender"]
    times = f"{row['speedup']:.1f} times {row['baseline']}" if "speedup" in row else ""
    turns = f"{row['turns']} queries" if "turns" in row else ""
    spread = f"p95 {row['p95_ms']:.1f} ms" if "p95_ms" in row else ""
    note = ", ".join(part for part in (turns, spread, times) if part)
    group = "ours" if name.startswith("decoupled") else ""
    return Bar(name=name, value=row["p50_ms"], note=note, group=group)
