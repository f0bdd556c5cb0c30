"""What the fault suites count: a JSON file for each, which names the commit; `make faults` says where."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from decoupled.lab.bench.report import machine

RESULTS = "FAULTS_RESULTS"


def record(suite: str, **figures: Any) -> None:
    """Keep the figures of a suite, where they are asked for."""
    if not (folder := os.environ.get(RESULTS)):
        return
    path = Path(folder) / f"faults_{suite}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"command": "make faults", "commit": _commit(), "machine": machine(), **figures}
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
