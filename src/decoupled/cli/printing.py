"""How results look: one JSON document, or a table for people."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

# A passage must not be able to move the cursor or to rename the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

NUMBERS = ("score", "agreement", "layer", "joint", "split", "joint ms", "split ms")
"""Columns that stand to the right."""


def note(message: str) -> None:
    """A line for the person at the terminal; never part of the data."""
    sys.stderr.write(message + "\n")


def document(value: Any) -> None:
    """One JSON document on stdout. Lone surrogates are escaped, so any text can be printed."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value)
    sys.stdout.buffer.write(text.encode("utf-8") + b"\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> None:
    """A table on stdout, numbers to the right; on a terminal, an iterator's as they come."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    grid = Table(*columns, title=title or None, title_justify="left", header_style="bold")
    for column, name in zip(grid.columns, columns, strict=True):
        if name in NUMBERS:
            column.justify = "right"
    console = Console()
    grows = console.is_terminal and isinstance(rows, Iterator)
    with Live(grid, console=console) if grows else nullcontext():
        for row in rows:
            grid.add_row(*(Text(_cell(value)) for value in row))
    if not grows:
        console.print(grid)


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one per line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for name, value in pairs:
        grid.add_row(Text(name, style="bold"), Text(_cell(_fact(value))))
    Console().print(grid)


def _fact(value: Any) -> Any:
    """A value of `info` for people: digits in groups, lists without brackets."""
    match value:
        case None | []:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case dict():
            return ", ".join(f"{name} {_fact(inner)}" for name, inner in value.items())
        case list():
            between = "\n" if any(isinstance(inner, dict) for inner in value) else ", "
            return between.join(str(_fact(inner)) for inner in value)
    return value


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return _CONTROL.sub("\ufffd", text)
