"""The tables of README.md, docs/results and the starter's card, made from the JSON in benchmarks/results.

    python docs/tables            # write them into the pages
    python docs/tables --check    # fail where a page differs, as `make check` does

A page says where a table stands: `<!-- table NAME -->`, the table, `<!-- end -->`. A function of that name
in this folder gives its header and rows. A number in a sentence is `<!-- n NAME -->24<!-- / -->` (`figures.py`);
in README.md and docs/results/README.md no measured number may stand outside of both. Results must name the
commit that made them (`origin.py`),
and say what today's code counts (`recount.py`).
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path

from beside import BESIDE
from documents import DOCUMENTS
from figures import FIGURES
from floors import FLOORS
from kinds import KINDS
from origin import faults, origin
from pretraining import PRETRAINING
from recount import faults as miscounts
from rerankers import RERANKERS
from scale import SCALE
from smaller import SMALLER
from speed import CPU, SPEED, cpu
from systems import systems
from tasks import TASKS
from training import TRAINING
from translation import TRANSLATION
from trust import TRUST
from words import WORDS

from agents import AGENTS
from results import ROOT, Table

MARK = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.S)
NUMBER = re.compile(r"(<!-- n ([\w-]+) -->).*?(<!-- / -->)")
MEASURED = re.compile(
    r"(?<![\d.])(?<!SQuAD )\d[\d,.]*(?:\s?%| (?:ms|times|F1|MB|GB|KiB|seconds|points)\b)"
)
"""What a reader takes for a measurement."""
CARD = ROOT / "src/decoupled/assets/starter/MODEL_CARD.md"
GUARDED = ("README.md", "docs/results/README.md")
SHORT = [n for n in CPU if "onnx" not in n and "narrow" not in n and "decoupled, torch" not in n]
TABLES: dict[str, Callable[[], Table]] = {
    **{
        make.__name__.strip("_").replace("_", "-"): make
        for make in (
            *TRAINING,
            *TASKS,
            *SPEED,
            *FLOORS,
            *DOCUMENTS,
            *RERANKERS,
            *TRUST,
            *SCALE,
            *TRANSLATION,
            *WORDS,
            *PRETRAINING,
            *AGENTS,
            *BESIDE,
        )
    },
    "cpu-short": lambda: cpu(SHORT),
    "origin": origin,
    "systems": systems,
    **SMALLER,
    **KINDS,
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

    def number(mark: re.Match[str]) -> str:
        if mark[2] not in FIGURES:
            raise SystemExit(f"{where}: no number {mark[2]!r}; there are {', '.join(FIGURES)}")
        return f"{mark[1]}{FIGURES[mark[2]]()}{mark[3]}"

    return NUMBER.sub(number, MARK.sub(fill, text))


def loose(text: str) -> list[str]:
    """Measured numbers of a page that no result stands behind."""
    prose = re.sub(r"```.*?```", "", NUMBER.sub("", MARK.sub("", text)), flags=re.S)
    return [mark[0] for mark in MEASURED.finditer(prose)]


def main() -> int:
    """Write the pages, or say where they differ from the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 where a page differs"
    )
    check, stale = parser.parse_args().check, 0
    for fault in (*faults(), *miscounts()):
        sys.stdout.write(f"{fault}\n")
        stale = 1
    for page in [ROOT / "README.md", CARD, *sorted((ROOT / "docs").rglob("*.md"))]:
        old = page.read_text(encoding="utf-8")
        new = filled(old, page)
        if str(page.relative_to(ROOT)) in GUARDED and (bare := loose(new)):
            sys.stdout.write(f"{page}: {', '.join(bare)} stand outside of tables and numbers\n")
            stale = 1
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
