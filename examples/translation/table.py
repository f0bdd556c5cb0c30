"""One table of what was trained; and the slides' models, their parameters counted from built ones.

python examples/translation/table.py --runs runs --data multi30k --time --json translation.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from beam import Beam, search
from corpus import read_lines
from translator import BIG, METHODS, START, Plan, Translator, describe, macs, planned

from decoupled.errors import DecoupledError, InputError
from decoupled.lab.bench.report import commit, machine


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
EVERY = tuple(dict.fromkeys(["base", *METHODS, *(slide.variant for slide in SLIDES)]))
"""Each method alone, and the rows of the slides: all that `train.py --variant all` trains."""
COMMAND = "python examples/translation/table.py --runs RUNS --data MULTI30K --time"
TOKENS, SENTENCES = 20, 8
"""Tokens of source and target that arithmetic is counted for, and the sentences of them that are timed."""


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
        found.append({**row, "bleu": round(sacrebleu.corpus_bleu(made, [wanted]).score, 2)})
    if not found:
        raise InputError(f"{runs} holds no finished run; train some with train.py --out {runs}")
    return found


def held(plan: Plan) -> dict[str, Any]:
    """Parameters, bytes and multiply-adds of what is built of a plan."""
    spec = describe(plan)
    with torch.device("meta"):
        total = sum(p.numel() for p in Translator(spec).parameters())
    work = macs(spec, source=TOKENS, target=TOKENS)
    return {"parameters": total, "bytes": 4 * total, "macs": work}


def timed(plans: dict[str, Plan], beam: Beam = Beam(most=TOKENS)) -> dict[str, float]:
    """Tokens that each plan writes in a second, the better of two turns; untrained, which costs the same."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rates = dict.fromkeys(plans, 0.0)
    for _, (name, plan) in itertools.product(range(2), plans.items()):
        translator = Translator(describe(plan)).to(device).eval()
        ids = torch.full((SENTENCES, TOKENS), START, device=device)
        with torch.inference_mode():
            began = time.perf_counter()
            texts, _ = search(translator, translator.encode(ids, ids > 0), beam)
        written = sum(len(text) + 1 for text in texts)
        rates[name] = max(rates[name], written / (time.perf_counter() - began))
    return rates


def by_variant(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """BLEU and steps of each variant, as means over its seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["variant"], []).append(row)
    means = {}
    for variant, some in found.items():
        scores = [row["bleu"] for row in some]
        means[variant] = {
            "bleu": statistics.mean(scores),
            "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
            "seeds": len(scores),
            "steps": round(statistics.mean(row["report"]["steps"] for row in some)),
        }
    return means


def compared(means: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The slides' rows in the order of their BLEU, each against the row that it changes; does it hold?

    A step of the slides holds where ours goes in the same direction, or where both are within half a point.
    Only runs are compared whose numbers of training steps differ by no more than a sixth.
    """
    before = {slide.variant: slide.bleu for slide in SLIDES}
    found = []
    for slide in sorted(SLIDES, key=lambda slide: -slide.bleu):
        grown = slide.variant.startswith("shared+factorised+")
        row = {"name": slide.name, "variant": slide.variant, "slides_bleu": slide.bleu}
        row |= {"matrices": counted(slide.variant), "slides_millions": slide.millions}
        start = "shared+factorised" if grown else "base"
        theirs = slide.bleu - before[start]
        row |= {"slides_step": theirs}
        base, own = means.get(start), means.get(slide.variant)
        if base and own and own is not base and abs(own["steps"] / base["steps"] - 1) <= 1 / 6:
            ours = own["bleu"] - base["bleu"]
            same = theirs * ours > 0 or max(abs(theirs), abs(ours)) < 0.5
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


def shown(variants: dict[str, dict[str, Any]], slides: list[dict[str, Any]]) -> str:
    """Both tables."""
    lines = []
    for variant, row in variants.items():
        score = f"{row['bleu']:.1f}" if "bleu" in row else "-"
        score += f" ± {row['deviation']:.1f}" if row.get("deviation") is not None else ""
        sizes = f"{row['parameters']:,}", f"{row['bytes'] / 2**20:.0f}", f"{row['macs'] / 1e6:,.0f}"
        rate = f"{row['tokens_per_second']:.0f}" if "tokens_per_second" in row else "-"
        lines.append((variant, score, row.get("seeds", 0), row.get("steps", 0), *sizes, rate))
    trained = "BLEU", "seeds", "steps"
    header = ("variant", *trained, "parameters", "MB", "MMACs", "tokens/s")
    steps = []
    for row in slides:
        ours = (
            (f"{row['step']:+.1f}", "yes" if row["holds"] else "no") if "step" in row else ("", "")
        )
        theirs = f"{row['matrices']:,}", row["slides_bleu"], f"{row['slides_step']:+.1f}"
        steps.append((row["name"], *theirs, *ours))
    columns = ("slides", "matrices", "their BLEU", "their step", "our step", "holds")
    return f"{text(header, lines)}\n\n{text(columns, steps)}"


def main() -> None:
    """Print the tables, and write what stands behind them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--runs", type=Path, help="folder of train.py; needs --data")
    add("--data", type=Path, help="folder with the references")
    add("--on", default="test_2016_flickr", help="set of sentences")
    add("--time", action="store_true", help="time every variant, untrained, on this machine")
    add("--json", type=Path, help="file to write")
    args = parser.parse_args()
    if (args.runs is None) != (args.data is None):
        parser.error("--runs and --data go together: translations are scored against references")
    runs = rows(args.runs, args.data, args.on) if args.runs else []
    means = by_variant(runs)
    plans = {variant: planned(variant) for variant in dict.fromkeys([*EVERY, *means])}
    variants = {name: {**held(plan), **means.get(name, {})} for name, plan in plans.items()}
    for name, rate in timed(plans).items() if args.time else ():
        variants[name]["tokens_per_second"] = rate
    slides = compared(means)
    print(shown(variants, slides))
    if args.json:
        # Without the paths of this machine.
        for row in runs:
            del row["command"]
        told = {"commit": commit(), "command": COMMAND, "machine": machine()}
        made = {**told, "set": args.on, "runs": runs, "variants": variants, "slides": slides}
        args.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except DecoupledError as error:
        sys.exit(str(error))
