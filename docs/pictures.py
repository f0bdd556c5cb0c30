"""The pictures of the pages that are drawn from results; the screenshots are taken by tests/page_images.py.

make images
"""

from __future__ import annotations

import json
from pathlib import Path

from decoupled.lab.bench import report

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """One question, one bar chart: what a query of 100 passages takes on a CPU."""
    raced = json.loads((ROOT / "benchmarks/results/bench_cpu.json").read_text(encoding="utf-8"))
    rows = [row for row in raced["rows"] if (row["shape"], row["top"]) == ("BERT-base", 100)]
    report.plot(rows, ROOT / "docs/images/bench_cpu.png")


if __name__ == "__main__":
    main()
