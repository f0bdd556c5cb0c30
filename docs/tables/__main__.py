"""The tables of README.md and docs/results, made from the JSON in benchmarks/results.

    python docs/tables            # write them into the pages
    python docs/tables --check    # fail where a page differs, as `make check` does

A page says where a table stands: `<!-- table NAME -->`, the table, `<!-- end -->`. A function of that name
in this folder gives its header and rows.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path

from smaller import SMALLER
from speed import CPU, SPEED, cpu
from training import TRAINING

from results import ROOT, Table

MARK = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.S)
SHORT = [n for n in CPU if "onnx" not in n and "narrow" not in n and "decoupled, torch" not in n]
TABLES: dict[str, Callable[[], Table]] = {
    **{make.__name__.strip("_").replace("_", "-"): make for make in (*TRAINING, *SPEED)},
    "cpu-short": lambda: cpu(SHORT),
    **SMALLER,
}


def render(table: Table) -> str:
    """Markdown, numbers to the right. A header that begins with `<` stays on the left."""
    header, rows = table
    left = [n == 0 or h.startswith("<") for n, h in enumerate(header)]
    lines = [[h.removeprefix("<") for h in header], ["---" if on else "--:" for on in left]]
    lines += [["" if value is None else str(value) for value in row] for row in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def filled(text: str, where: Path) -> str:
    """A page with every table as the results have it."""

    def fill(mark: re.Match[str]) -> str:
        if mark[2] not in TABLES:
            raise SystemExit(f"{where}: no table {mark[2]!r}; there are {', '.join(TABLES)}")
        return f"{mark[1]}\n{render(TABLES[mark[2]]())}\n{mark[3]}"

    return MARK.sub(fill, text)


def main() -> int:
    """Write the pages, or say where they differ from the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 where a page differs"
    )
    check, stale = parser.parse_args().check, 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        old = page.read_text(encoding="utf-8")
        new = filled(old, page)
        if new != old and check:
            sys.stdout.writelines(
                difflib.unified_diff(
                    old.splitlines(True), new.splitlines(True), str(page), "from the results", n=0
                )
            )
            stale = 1
        elif new != old:
            page.write_text(new, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
