"""`decoupled lab bench` where little but torch is installed, as on a bare GPU machine.

PYTHONPATH=src python benchmarks/race.py --preset gpu -o gpu.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from decoupled.errors import DecoupledError
from decoupled.lab.bench import report
from decoupled.lab.bench.race import PRESETS, bench


def main() -> None:
    """Race, save, and print the tables as tab-separated lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="gpu", choices=sorted(PRESETS))
    parser.add_argument("--output", "-o", type=Path)
    parser.add_argument("--shape", dest="shapes", action="append", default=[])
    parser.add_argument("--top", dest="tops", action="append", type=int, default=[])
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--turns", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--work", type=Path)
    try:
        raced = bench(**vars(parser.parse_args()), progress=_note)
    except DecoupledError as error:
        sys.exit(f"error: {error}")
    for table in report.tables(raced["rows"]):
        sys.stdout.write(f"\n{table.title}\n")
        for row in (table.columns, *table.rows):
            sys.stdout.write("\t".join(row) + "\n")
    for line in report.skipped(raced["rows"]):
        _note(line)


def _note(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    main()
