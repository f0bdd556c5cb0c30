"""What the cells of a race say together: ratios to the baseline, memory saved, share of the ceiling."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoupled.lab.bench import contenders
from decoupled.lab.bench.contenders import BASELINES
from decoupled.lab.bench.results import Results, key_of
from decoupled.lab.bench.shapes import PASSAGE_TOKENS, QUERY_TOKENS, shape_named
from decoupled.lab.bench.work import joint_flops, query_flops


def compare(results: Results) -> list[dict[str, Any]]:
    """A row for each cell, with its ratio to the baseline of the same shape and number of passages."""
    cells, rows = results.data["cells"], []
    for key, cell in cells.items():
        shape, top, name = key.split(" | ")
        known = {field: value for field, value in cell.items() if field != "times_ms"}
        row: dict[str, Any] = {"shape": shape, "top": int(top), "contender": name, **known}
        for baseline in BASELINES:
            base = cells.get(key_of(shape, int(top), baseline), {})
            if "p50_ms" in base and "p50_ms" in cell:
                row |= {"baseline": baseline, "speedup": _ratio(base, cell)}
                if cell.get("query_bytes") and base.get("query_bytes"):
                    row["memory_saved"] = round(1 - cell["query_bytes"] / base["query_bytes"], 3)
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
    way = contenders.ours_by_name().get(name, ("", ""))[1]
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
    found: dict[str, Any] = {
        "gflop": round(flops / 1e9, 2),
        "gflops": round(rate, 1),
        "arithmetic": kind,
    }
    if isinstance(ceilings.get(kind), float) and ceilings[kind] > 0:
        found["of_ceiling"] = round(rate / ceilings[kind], 3)
    return found
