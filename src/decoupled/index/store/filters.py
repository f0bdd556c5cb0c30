"""Metadata filters: `{"lang": "en", "year": {"gte": 2020}, "kind": ["a", "b"]}`, all of which must hold.

A filter is turned into conditions on tags (see `record.tag`), so every store compares the same strings.
Numbers compare as numbers, text as text, and `True` is not 1. `id` and `title` name those fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decoupled.errors import InputError
from decoupled.index.record import tag

OWN = ("id", "title")
"""Fields of a record that a filter may name beside the metadata."""

FIELDS, VALUES, CHARACTERS = 64, 1000, 4096
"""What one filter may name: fields, values of all of them together, characters of a name or a value."""

_BOUNDS = ("gte", "gt", "lt", "lte")
_MANY = (list, tuple, set, frozenset)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition on a record: it holds one of `exact`, or, if that is None, a string in `[low, high)`."""

    field: str
    """`id`, `title` or `tags`."""
    exact: tuple[str, ...] | None = None
    low: str = ""
    high: str | None = None


def conditions(where: Mapping[str, Any]) -> tuple[Condition, ...]:
    """The conditions that a filter stands for; an ill-formed one is an `InputError`."""
    if not isinstance(where, Mapping):
        raise InputError(f"the filter is {where!r:.80}; expected an object of fields and values")
    _bounded(len(where), FIELDS, "fields")
    values = (len(v) if isinstance(v, _MANY) else 1 for v in where.values())
    _bounded(sum(values), VALUES, "values")
    return tuple(_condition(key, value) for key, value in where.items())


def _bounded(count: int, most: int, what: str) -> None:
    if count > most:
        raise InputError(f"the filter has {count:,} {what}; give at most {most:,}")


def _condition(key: str, value: Any) -> Condition:
    field = key if key in OWN else "tags"
    if isinstance(value, Mapping):
        return _range(field, key, value)
    values = value if isinstance(value, _MANY) else [value]
    return Condition(field=field, exact=tuple(_string(field, key, v) for v in values))


def _string(field: str, key: str, value: Any) -> str:
    if field != "tags" and not isinstance(value, str):
        raise InputError(f"the filter wants {key:.80}={value!r:.80}; expected text")
    for text in (key, value):
        if isinstance(text, str):
            _bounded(len(text), CHARACTERS, "characters in a name or a value")
    string = tag(key, value) if field == "tags" else str(value)
    try:
        string.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"the filter wants {key!r:.80}={value!r:.80}, which is not text; leave out lone surrogates"
        ) from None
    return string


def _range(field: str, key: str, bounds: Mapping[str, Any]) -> Condition:
    unknown = [name for name in bounds if name not in _BOUNDS]
    if unknown or not bounds:
        has = ", ".join(f"{name!r:.40}" for name in unknown[:4]) or "no bounds"
        raise InputError(f"the filter on {key!r:.80} has {has}; use {', '.join(_BOUNDS)}")
    odd = any(isinstance(v, bool) or not isinstance(v, str | int | float) for v in bounds.values())
    texts = {isinstance(v, str) for v in bounds.values()}
    if odd or len(texts) > 1:
        raise InputError(
            f"the filter on {key!r:.80} has bounds {dict(bounds)!r:.80}; expected all numbers or all text"
        )
    # Tags of one kind lie between `key NUL kind` and the next letter.
    kind, after = ("s", "t") if texts.pop() else ("n", "o")
    lows, highs = ([f"{key}\0{kind}"], [f"{key}\0{after}"]) if field == "tags" else ([], [])
    for name, value in bounds.items():
        # The next string after s, in the order of strings, is s and a NUL.
        edge = _string(field, key, value) + ("\0" if name in ("gt", "lte") else "")
        (lows if name.startswith("g") else highs).append(edge)
    return Condition(field=field, low=max(lows, default=""), high=min(highs, default=None))
