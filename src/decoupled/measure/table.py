"""Results for people: a table, and values as its cells show them, wherever it is printed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# A passage must not be able to move the cursor or to rename the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A title, columns, rows of values, and lines that follow them."""

    title: str = ""
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()


def cell(value: Any) -> str:
    """A value as text for a cell: floats with four digits, no control characters."""
    return f"{value:.4f}" if isinstance(value, float) else clean(str(value))


def clean(text: str) -> str:
    """Text that cannot act on a terminal."""
    return _CONTROL.sub("\ufffd", text.encode("utf-8", "replace").decode("utf-8"))


def fact(value: Any) -> Any:
    """A value of `info` for people: digits in groups, lists without brackets."""
    match value:
        case None | []:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.4g}"
        case dict():
            return ", ".join(f"{name} {fact(inner)}" for name, inner in value.items())
        case list():
            between = "\n" if any(isinstance(inner, dict) for inner in value) else ", "
            return between.join(str(fact(inner)) for inner in value)
    return value
