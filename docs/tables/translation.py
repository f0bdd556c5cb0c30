"""The tables of the example of translation."""

from __future__ import annotations

from results import Table, read


def translation() -> Table:
    """Every variant: what it holds, what it costs, and its BLEU as far as it was trained."""
    rows = []
    for variant, row in read("translation.json")["variants"].items():
        sizes = f"{row['parameters'] / 1e6:.1f}", f"{row['bytes'] / 2**20:.0f}"
        rate = f"{row['tokens_per_second']:,.0f}" if "tokens_per_second" in row else None
        cost = f"{row['macs'] / 1e6:,.0f}", rate
        scores = (f"{row[name]:.1f}" if name in row else None for name in ("bleu", "base"))
        rows.append((f"`{variant}`", *sizes, *cost, *scores, row.get("steps"), row.get("seeds")))
    trained = "BLEU", "of the base alike", "steps", "seeds"
    return ("variant", "M parameters", "MB", "M MACs", "tokens/s", *trained), rows


def translation_slides() -> Table:
    """Rows of the slides in the order of their BLEU, and whether the step to each is ours too."""
    rows = []
    for row in read("translation.json")["slides"]:
        theirs = row["slides_millions"], row["slides_bleu"], f"{row['slides_step']:+.1f}"
        ours = (
            (f"{row['step']:+.1f}", "yes" if row["holds"] else "no")
            if "step" in row
            else (None, None)
        )
        rows.append((row["name"], f"{row['matrices']:,}", *theirs, *ours))
    header = (
        "row of the slides",
        "built",
        "M given",
        "their BLEU",
        "their step",
        "our step",
        "holds",
    )
    return header, rows


TRANSLATION = (translation, translation_slides)
