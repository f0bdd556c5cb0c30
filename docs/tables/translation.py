"""The tables of the example of translation."""

from __future__ import annotations

from results import Table, read


def translation() -> Table:
    """Every variant that was trained, the largest first."""
    rows = []
    for variant, row in read("translation.json")["variants"].items():
        spread = "" if row["deviation"] is None else f" ± {row['deviation']:.1f}"
        rate = row["tokens_per_second"]
        sizes = (
            f"{row['parameters'] / 1e6:.1f}",
            f"{row['bytes'] / 2**20:.0f}",
            f"{row['macs'] / 1e6:,.0f}",
        )
        score = f"{row['bleu']:.1f}{spread}"
        rows.append((f"`{variant}`", score, row["seeds"], *sizes, f"{rate:,}" if rate else None))
    header = ("variant", "BLEU", "seeds", "M parameters", "MB", "M MACs", "tokens/s")
    return header, rows


def translation_slides() -> Table:
    """Rows of the slides in the order of their BLEU, and whether the step to each is ours too."""
    rows = []
    for row in read("translation.json")["slides"]:
        theirs = f"{row['matrices'] / 1e6:.2f}", row["slides_millions"], row["slides_bleu"]
        ours: tuple[object, ...] = (None, None, None, None)
        if "step" in row:
            ours = f"{row['bleu']:.1f}", f"{row['slides_step']:+.1f}", f"{row['step']:+.1f}"
            ours = (*ours, "yes" if row["holds"] else "no")
        rows.append((row["name"], *theirs, *ours))
    header = (
        "row of the slides",
        "M built",
        "M given",
        "their BLEU",
        "ours",
        "their step",
        "our step",
    )
    return (*header, "holds"), rows


TRANSLATION = (translation, translation_slides)
