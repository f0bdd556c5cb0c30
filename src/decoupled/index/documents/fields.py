"""Reading the fields of a row, whoever named them."""

from __future__ import annotations

from decoupled.index.documents.problems import RowError
from decoupled.index.documents.rows import Fields


def lowered(fields: Fields) -> Fields:
    """The same fields under trimmed, lower-case names."""
    return {name.strip().lower(): value for name, value in fields.items()}


def first_of(fields: Fields, names: tuple[str, ...]) -> object:
    """The value under the first of these names that is there and not null."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def word(name: str, value: object) -> str:
    """A string, or a number as one; empty for null. Raises `RowError` for anything else."""
    if type(value) is str:
        return value
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise RowError(f"{name} is {value!r:.60}; expected a string or a number")


def names_of(fields: Fields) -> str:
    """The names of a row's fields, for a message."""
    return (", ".join(map(str, fields)) or "nothing")[:200]
