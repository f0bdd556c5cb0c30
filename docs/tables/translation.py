"""The tables of the example of translation."""

from __future__ import annotations

from results import Table, read


def translation() -> Table:
    """Every trained variant: what it holds, what it costs, its BLEU and its steps."""
    rows = []
    for variant, row in read("translation.json")["variants"].items():
        if "bleu" not in row:
            continue
        sizes = f"{row['parameters'] / 1e6:.1f}", f"{row['bytes'] / 2**20:.0f}"
        cost = f"{row['macs'] / 1e6:,.0f}", f"{row['tokens_per_second']:,.0f}"
        trained = f"{row['bleu']:.1f}", f"{row['steps']:,}", row["seeds"]
        rows.append((f"`{variant}`", *sizes, *cost, *trained))
    header = "variant", "M parameters", "MB", "M MACs", "tokens/s", "BLEU", "steps", "seeds"
    return header, rows


def translation_slides() -> Table:
    """Rows of the slides in the order of their BLEU, and whether the step to each is ours too."""
    rows = []
    for row in read("translation.json")["slides"]:
        theirs = row["slides_millions"], row["slides_bleu"], f"{row['slides_step']:+.1f}"
        ours: tuple[str | None, str | None] = None, None
        if "step" in row:
            # A model of another size than theirs is no such step.
            like = abs(row["matrices"] / 1e6 / row["slides_millions"] - 1) < 0.1
            holds = ("yes" if row["holds"] else "no") if like else "other size"
            ours = f"{row['step']:+.1f}", holds
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
