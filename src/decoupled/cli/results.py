"""Hits and answers for people: what was found, marked in its passage, and where that stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from decoupled.measure.table import clean

if TYPE_CHECKING:
    from rich.text import Text

    import decoupled as dc

AROUND = 120
"""Characters of a passage on either side of its answer."""
SHOWN = 300
"""Characters of a hit."""
OTHERS = 3
"""Further places of an answer that are named."""


def show_answers(answers: dc.Answers) -> None:
    """Each answer, marked in its best passage, and every document that says the same."""
    from rich.text import Text

    for number, answer in enumerate(answers, 1):
        head = Text.assemble(f"{number}. ", (clean(answer.text), "bold"), f"  {answer.score:.1%}")
        first, last = max(0, answer.start - AROUND), answer.end + AROUND
        before, after = answer.passage[first : answer.start], answer.passage[answer.end : last]
        words = Text.assemble(
            "…" * (first > 0) + _line(before),
            (_line(answer.text), "bold reverse"),
            _line(after) + "…" * (last < len(answer.passage)),
        )
        places = answer.evidence or (answer,)
        rest = [_where(place) for place in places[1 : 1 + OTHERS]]
        if len(places) > 1 + OTHERS:
            rest.append(Text(f"{len(places) - 1 - OTHERS} more places", style="dim"))
        _print(head, [words, _where(answer), *(Text.assemble("also ", place) for place in rest)])


def show_hits(hits: dc.Hits) -> None:
    """Each passage with its document and heading; its places in the first stage where they are known."""
    from rich.text import Text

    for number, hit in enumerate(hits, 1):
        head = Text.assemble(f"{number}. {hit.score:.4f}  ", _where(hit))
        lines = [Text(_line(hit.text[:SHOWN]) + "…" * (len(hit.text) > SHOWN))]
        if hit.first_stage is not None:
            stages = hit.first_stage.items()
            told = ", ".join(f"{name} {at['rank']:.0f} ({at['score']:.4g})" for name, at in stages)
            lines.append(Text(f"first stage: {told}", style="dim"))
        _print(head, lines)


def _where(found: dc.Hit | dc.Evidence) -> Text:
    """Document, heading path and characters; the id of a passage that is a document of its own."""
    from rich.text import Text

    from decoupled.search.results import Hit

    ident = found.id if isinstance(found, Hit) else found.passage_id
    # A `document` of the user's own does not tell passages apart.
    parts = [Text(clean(found.document if found.place else ident), style="cyan")]
    if found.title:
        parts.append(Text(clean(found.title)))
    if found.place is not None:
        parts.append(Text("characters {:,}–{:,}".format(*found.place), style="dim"))
    return Text(" · ").join(parts)


def _line(text: str) -> str:
    """Without line breaks, which are the file's and not the screen's; blanks at the ends stay."""
    return clean(text.replace("\r", " ").replace("\n", " "))


def _print(head: Text, lines: Iterable[Text]) -> None:
    from rich.console import Console
    from rich.padding import Padding

    console = Console()
    console.print(head)
    for line in lines:
        console.print(Padding(line, (0, 0, 0, 3)))
