"""The cells of a race, in a file that grows with them, and what they say together."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from decoupled.errors import InputError
from decoupled.lab.bench import contenders
from decoupled.lab.bench.shapes import PASSAGE_TOKENS, QUERY_TOKENS, Shape, shape_named


@dataclass
class Results:
    """Cells by name, in a file that is rewritten whole whenever one is added."""

    path: Path | None
    data: dict[str, Any] = field(default_factory=dict)

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

    def describe(self, preset: str, machine: dict[str, Any], **setting: Any) -> None:
        """What a report needs to know of the file; times of another setting stay in a file of their own.

        `setting` is the device, the number of threads and the commit, None where that is not known.
        """
        if self.data["cells"]:  # those of a file that names no commit may be of any
            self.data.setdefault("commit", None)
        self._check({**setting, "processor": machine.get("processor")})
        about = {
            "kind": "bench",
            "command": f"decoupled lab bench --preset {preset}",
            "preset": preset,
        }
        now = {**setting, "machine": machine}
        self.data = {**about, **now, **self.data, **now}

    def _check(self, setting: dict[str, Any]) -> None:
        """Raise where the file says that its cells were raced otherwise."""
        known = {**self.data.get("ceiling", {}), **self.data.get("machine", {}), **self.data}
        for name, value in setting.items():
            if known.get(name, value) != value:
                raise InputError(
                    f"{self.path} holds times of {name}={known[name]!r}, and this race has "
                    f"{name}={value!r}; name another file"
                )

    def has(self, key: str) -> bool:
        """Was the cell raced to its end? One that was skipped or cut off is tried again."""
        cell = self.data["cells"].get(key, {})
        return "p50_ms" in cell and not cell.get("unfinished")

    def put(self, key: str, cell: dict[str, Any]) -> None:
        """Add a cell and save."""
        self.data["cells"][key] = cell
        self.save()

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


def compare(results: Results) -> list[dict[str, Any]]:
    """A row for each cell, with its ratio to the baseline of the same shape and number of passages."""
    cells, rows = results.data["cells"], []
    for key, cell in cells.items():
        shape, top, name = key.split(" | ")
        known = {field: value for field, value in cell.items() if field != "times_ms"}
        row: dict[str, Any] = {"shape": shape, "top": int(top), "contender": name, **known}
        for baseline in contenders.BASELINES:
            base = cells.get(key_of(shape, int(top), baseline), {})
            if "p50_ms" in base and "p50_ms" in cell:
                row |= {"baseline": baseline, "speedup": _ratio(base, cell)}
                if cell.get("peak_bytes") and base.get("peak_bytes"):
                    row["memory_saved"] = round(1 - cell["peak_bytes"] / base["peak_bytes"], 3)
                break
        rows.append(row | _rate(row, results.data.get("ceiling", {})))
    return rows


def _ratio(base: dict[str, Any], cell: dict[str, Any]) -> float:
    """The median over turns that both took, so that a slow minute counts for neither."""
    both = zip(base["times_ms"], cell["times_ms"], strict=False)
    return round(float(np.median([b / c for b, c in both])), 2)


def _rate(row: dict[str, Any], ceilings: dict[str, Any]) -> dict[str, Any]:
    """FLOP/s of the part that reads pairs, and its share of the machine's ceiling."""
    if "p50_ms" not in row or row["shape"] not in contenders.RACED:
        return {}
    name, shape = row["contender"], shape_named(row["shape"])
    way = contenders.our_ways().get(name, ("", ""))[1]
    if name in (contenders.FLASHRANK, contenders.MODERN) or way == "cascade" or "narrow" in way:
        return {}
    if way in ("exact", "one-way"):
        flops = row["top"] * query_flops(
            shape, QUERY_TOKENS, PASSAGE_TOKENS, one_way=way == "one-way"
        )
        milliseconds = row.get("stages_ms", {}).get("cross_ms", row["p50_ms"])
    else:
        flops = row["top"] * joint_flops(shape, QUERY_TOKENS + PASSAGE_TOKENS)
        milliseconds = row["p50_ms"]
    rate = flops / milliseconds / 1e6
    kind = contenders.arithmetic(name, row)
    facts: dict[str, Any] = {
        "gflop": round(flops / 1e9, 2),
        "gflops": round(rate, 1),
        "arithmetic": kind,
    }
    if isinstance(ceilings.get(kind), float) and ceilings[kind] > 0:
        facts["of_ceiling"] = round(rate / ceilings[kind], 3)
    return facts


# Arithmetic in FLOPs: matrix products of the layers, two for a multiplication with its sum -------


def layer_flops(shape: Shape, tokens: int, rows: int) -> int:
    """One layer that computes `rows` of `tokens`: keys and values of all, the rest of its rows."""
    layer = shape.spec().layers[0]
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
