"""Frozen dataclasses as JSON, both ways: exact inverses, and every misfit is named."""

import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import isabstract
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin
from weakref import WeakKeyDictionary

from decoupled.errors import SpecError
from decoupled.model import annex

T = TypeVar("T")

JsonObject: TypeAlias = dict[str, Any]
"""A JSON document: what is read from a file or a client, and what is printed."""
LATER = types.MappingProxyType({"later": True})
"""Metadata of a field that came after its format was fixed: it is left out of the JSON while it has its
default, so that older files, and digests of them, stay as they are. Such a default never changes."""

# Weak keys: a class that a test or a method defined may be collected again.
_HINTS: WeakKeyDictionary[type, dict[str, Any]] = WeakKeyDictionary()

MANY, LARGE = 1024, 1 << 31
"""The longest list and the first number that no spec has: what is beyond is damaged or made to harm."""


def to_json(value: Any, *, later: bool = False) -> Any:
    """A spec as plain JSON values, defaults included, so that a later default changes nothing.

    With `later`, so are the defaults of fields that came later.
    """
    if is_dataclass(value) and not isinstance(value, type):
        written = [f for f in fields(value) if later or not _unsaid(f, getattr(value, f.name))]
        return {_key(f): to_json(getattr(value, f.name), later=later) for f in written}
    if isinstance(value, tuple):
        return [to_json(item, later=later) for item in value]
    return value


def _key(field: Field[Any]) -> str:
    """The name of a field in JSON, which stays the same when the field is renamed."""
    return str(field.metadata.get("key", field.name))


def _unsaid(field: Field[Any], value: Any) -> bool:
    return bool(field.metadata.get("later")) and value == field.default


def from_json(kind: type[T], data: Mapping[str, Any]) -> T:
    """The spec that `to_json` wrote; unknown, missing or ill-typed fields are a `SpecError`."""
    return typing.cast(T, _read(kind, data, kind.__name__))


def _read(kind: Any, data: Any, where: str) -> Any:
    # An abstract class stands for a choice among its kinds, told apart by the tag in the data.
    if isinstance(kind, type) and isabstract(kind):
        return _read_kind(kind, data, where)
    if isinstance(kind, type) and is_dataclass(kind):
        return _read_dataclass(kind, data, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _read_union(get_args(kind), data, where)
    if origin is Literal:
        if data not in get_args(kind):
            raise SpecError(
                f"{where} is {data!r}; expected one of {', '.join(map(repr, get_args(kind)))}"
            )
        return data
    if origin is tuple:
        if not isinstance(data, list):
            raise SpecError(f"{where} is {data!r}; expected a list")
        if len(data) > MANY:
            raise SpecError(f"{where} has {len(data)} items; expected at most {MANY}")
        return tuple(_read(get_args(kind)[0], x, f"{where}[{i}]") for i, x in enumerate(data))
    # JSON writes 1.0 as 1 in other languages; a bool is no number here.
    if kind is float and isinstance(data, int) and not isinstance(data, bool) and abs(data) < LARGE:
        return float(data)
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise SpecError(f"{where} is {data!r:.80}; expected {kind.__name__}")
    # Python's parser takes NaN and Infinity, and numbers of any length.
    if kind in (int, float) and not (math.isfinite(data) and abs(data) < LARGE):
        raise SpecError(f"{where} is {data!r:.80}; expected a number within ±{LARGE}")
    return data


def _read_dataclass(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise SpecError(f"{where} is {data!r}; expected an object")
    hints = _hints(kind)
    by_key = {_key(f): f for f in fields(kind)}
    # Fields of older versions that are ignored rather than refused.
    dropped: frozenset[str] = getattr(kind, "DROPPED", frozenset())
    data = {name: value for name, value in data.items() if name not in dropped}
    if surplus := sorted(set(data) - set(by_key)):
        raise SpecError(
            f"{where} has unknown fields {', '.join(surplus)}; was it made by a newer version? Update "
            "decoupled, or remove them"
        )
    for name, field in by_key.items():
        if name not in data and field.default is MISSING:
            raise SpecError(f"{where} lacks the field {name!r}")
    named = {by_key[key].name: (key, value) for key, value in data.items()}
    return kind(**{n: _read(hints[n], v, f"{where}.{key}") for n, (key, v) in named.items()})


def _hints(kind: Any) -> dict[str, Any]:
    """The types of the fields of a class, cached since resolving them is the slowest step of reading."""
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    return _HINTS[kind]


def _read_union(options: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    # The only unions of a spec are `X | None`; anything else fails here when it is introduced.
    (option,) = (o for o in options if o is not type(None))
    return _read(option, data, where)


def _read_kind(base: Any, data: Any, where: str) -> Any:
    """Read one of the kinds of an abstract class, chosen by its tag."""
    tag = data.get("kind", getattr(base, "unsaid", None)) if isinstance(data, Mapping) else None
    # The tag may belong to a method whose folder was not imported yet.
    if tag not in _kinds_by_tag(base):
        annex.load_kind(tag)
    if tag in (kinds := _kinds_by_tag(base)):
        return _read_dataclass(kinds[tag], data, where)
    names = ", ".join(sorted(kinds))
    raise SpecError(f"{where} is of no known kind: {data!r:.200}; choose kind among {names}")


def _kinds_by_tag(base: Any) -> dict[str, Any]:
    """The kinds of an abstract class that are defined so far, by tag."""
    return {
        kind.kind: kind for kind in _kinds(base) if isinstance(getattr(kind, "kind", None), str)
    }


def _kinds(base: Any) -> Iterator[Any]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)
