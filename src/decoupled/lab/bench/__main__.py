"""`python -m decoupled.lab.bench`: the race where little but torch is installed, as on a bare GPU machine."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from decoupled.errors import DecoupledError
from decoupled.lab.bench import race, report
from decoupled.lab.bench.compare import compare
from decoupled.lab.bench.results import Results


def main() -> None:
    """Race, save, and print the tables as tab-separated lines."""
    parser = argparse.ArgumentParser(prog="python -m decoupled.lab.bench", description=__doc__)
    parser.add_argument("--preset", default="gpu", choices=sorted(race.PRESETS))
    parser.add_argument("--output", "-o", type=Path)
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--top", action="append", type=int, default=[])
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--turns", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    try:
        run(given)
    except DecoupledError as error:
        sys.exit(f"error: {error}")


def run(given: argparse.Namespace) -> None:
    """The command, its options parsed."""
    plan = race.plan_of(
        given.preset,
        shapes=tuple(given.shape),
        tops=tuple(sorted(given.top)),
        only=tuple(given.only),
        turns=given.turns,
        threads=given.threads,
    )
    race.check_device(plan.device)
    results = Results.open(given.output)
    results.describe(given.preset, report.machine(), device=plan.device, threads=plan.threads)
    folder = nullcontext(str(given.work)) if given.work else tempfile.TemporaryDirectory()
    with folder as work:
        Path(work).mkdir(parents=True, exist_ok=True)
        race.race(plan, results, Path(work), _tell)
    rows = compare(results)
    results.data["rows"] = rows
    results.save()
    for table in report.tables(rows):
        sys.stdout.write(f"\n{table.title}\n")
        for row in (table.columns, *table.rows):
            sys.stdout.write("\t".join(row) + "\n")
    for line in report.skipped(rows):
        _tell(line)
    sys.stdout.write(report.ceiling_line(results.data["ceiling"]) + "\n")


def _tell(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    main()
