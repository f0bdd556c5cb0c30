"""Reading the results, for every table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
Table = tuple[Sequence[str], Iterable[Sequence[object]]]


def read(name: str) -> Any:
    """One file of results; a list where it holds a JSON document a line."""
    text = (RESULTS / name).read_text(encoding="utf-8")
    return (
        [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)
    )


def runs(*names: str) -> dict[str, Mapping[str, Any]]:
    """The scores of trained models by their names; the first file that has one decides."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in names:
        for run in read(name)["runs"]:
            found.setdefault(run.get("name") or run["run"]["name"], run["test"])
    return found
