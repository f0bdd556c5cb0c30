"""One table of what was trained; and the slides' models, their parameters counted from built ones.

python examples/translation/table.py --data multi30k --runs runs --json translation.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from corpus import read_lines
from translator import BIG, SPEC, Translator, TranslatorSpec, describe, macs, planned

from decoupled.errors import DecoupledError, InputError
from decoupled.model.jsonable import from_json


@dataclass(frozen=True, kw_only=True)
class Slide:
    """A row of "Our Attempt" on the slides: BLEU on their task, millions of parameters."""

    name: str
    variant: str
    bleu: float
    millions: int


SLIDES = (
    Slide(name="Transformer-big", variant="base", bleu=30.69, millions=258),
    Slide(name="ls + ed(128)", variant="shared+factorised8", bleu=29.42, millions=40),
    Slide(name="/ (ls + ed(256))", variant="shared+factorised", bleu=30.48, millions=50),
    Slide(name="emb share", variant="shared+factorised+tied", bleu=29.91, millions=40),
    Slide(name="emb(6k)", variant="shared+factorised+vocabulary", bleu=27.42, millions=33),
    Slide(name="ffn(2048)", variant="shared+factorised+ffn", bleu=29.57, millions=42),
    Slide(name="12e3d", variant="shared+factorised+12e3d", bleu=30.33, millions=50),
    Slide(
        name="12e6d + dm(768) + head(12)",
        variant="shared+factorised+12e6d+narrow",
        bleu=30.09,
        millions=41,
    ),
    Slide(name="ls + hierarchical emb", variant="shared+banded", bleu=25.0, millions=30),
)
"""The last is given as below 25, and its table is not described: ours has bands, and a total of its own."""
TOKENS = 20
"""Of the source and of the target that multiply-adds are counted for."""


def counted(variant: str) -> int:
    """Matrices of the variant at the slides' size, built without memory."""
    with torch.device("meta"):
        return Translator(describe(planned(variant, BIG))).matrices()


def rows(runs: Path, data: Path, name: str) -> list[dict[str, Any]]:
    """What train.py wrote of each run, with the BLEU of its translations of a set."""
    import sacrebleu  # here, since train.py runs without it

    found = []
    for path in sorted(runs.glob("*/result.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        made = (path.parent / f"{name}.txt").read_text(encoding="utf-8").split("\n")[:-1]
        wanted = read_lines(data, name, row["languages"][1])[: row["limit"]]
        spec = from_json(TranslatorSpec, json.loads((path.parent / SPEC).read_text("utf-8")))
        row["macs"] = macs(spec, source=TOKENS, target=TOKENS)
        row["bleu"] = round(sacrebleu.corpus_bleu(made, [wanted]).score, 2)
        found.append(row)
    if not found:
        raise InputError(f"{runs} holds no finished run; train some with train.py --out {runs}")
    return found


def by_variant(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The mean over the seeds of each variant; the smallest models last."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["variant"], []).append(row)
    means = {}
    for variant, some in sorted(found.items(), key=lambda item: -item[1][0]["parameters"]):
        scores = [row["bleu"] for row in some]
        rate = max(row.get("tokens_per_second", 0) for row in some)
        means[variant] = {
            "bleu": statistics.mean(scores),
            "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
            "seeds": len(scores),
            "tokens_per_second": round(rate) or None,
            **{name: some[0][name] for name in ("parameters", "bytes", "macs")},
        }
    return means


def compared(means: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The slides' rows in the order of their BLEU, each against the row that it changes; does it hold?

    A step of the slides holds where ours goes in the same direction, or where both are within half a point.
    """
    before = {slide.variant: slide.bleu for slide in SLIDES}
    found = []
    for slide in sorted(SLIDES, key=lambda slide: -slide.bleu):
        grown = slide.variant.startswith("shared+factorised+")
        base = "shared+factorised" if grown else "base"
        row = {"name": slide.name, "variant": slide.variant, "slides_bleu": slide.bleu}
        row |= {"matrices": counted(slide.variant), "slides_millions": slide.millions}
        if slide.variant in means and base in means:
            theirs = slide.bleu - before[base]
            ours = means[slide.variant]["bleu"] - means[base]["bleu"]
            same = theirs * ours > 0 or max(abs(theirs), abs(ours)) < 0.5 or theirs == ours
            row |= {"bleu": means[slide.variant]["bleu"], "against": base, "slides_step": theirs}
            row |= {"step": ours, "holds": same}
        found.append(row)
    return found


def text(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Columns as wide as what they hold."""
    cells = [[str(value) for value in line] for line in (header, *lines)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def shown(means: dict[str, dict[str, Any]], slides: list[dict[str, Any]]) -> str:
    """Both tables."""
    lines = []
    for variant, row in means.items():
        spread = "" if row["deviation"] is None else f" ± {row['deviation']:.1f}"
        sizes = (
            f"{row['parameters']:,}",
            f"{row['bytes'] / 2**20:.0f} MB",
            f"{row['macs'] / 1e6:,.0f}",
        )
        score = f"{row['bleu']:.1f}{spread}"
        lines.append((variant, score, row["seeds"], *sizes, row["tokens_per_second"] or "-"))
    header = ("variant", "BLEU", "seeds", "parameters", "bytes", "MMACs", "tokens/s")
    steps = []
    for row in slides:
        tried = "step" in row
        ours = ("", "", "")
        if tried:
            ours = (f"{row['bleu']:.1f}", f"{row['step']:+.2f}", "yes" if row["holds"] else "no")
        theirs = (row["slides_bleu"], f"{row['slides_step']:+.2f}" if tried else "")
        steps.append((row["name"], f"{row['matrices']:,}", *theirs, *ours))
    columns = ("slides", "matrices", "their BLEU", "step", "our BLEU", "step", "holds")
    return f"{text(header, lines)}\n\n{text(columns, steps)}"


def main() -> None:
    """Print the tables, and write what stands behind them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the references")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--on", default="test_2016_flickr", help="set of sentences")
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    found = rows(args.runs, args.data, args.on)
    means = by_variant(found)
    slides = compared(means)
    print(shown(means, slides))
    if args.json:
        one = found[0]
        told = {"commit": one["commit"], "command": one["command"], "device": one["device"]}
        made = {**told, "set": args.on, "runs": found, "variants": means, "slides": slides}
        args.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except DecoupledError as error:
        sys.exit(str(error))
