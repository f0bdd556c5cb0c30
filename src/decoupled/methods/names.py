"""The methods by name, and `NAME:key=value,key=value` as a method with checked options."""

import types
import typing
from typing import Any, Literal, Union, cast, get_args, get_origin

from decoupled.errors import InputError, SpecError
from decoupled.methods.method import Method
from decoupled.model import annex


def method_named(name: str) -> type[Method]:
    """The class of a method, from its folder; an unknown name is an error that lists all."""
    if name not in annex.SHRINKING:
        raise InputError(f"method {name!r} is unknown; choose one of {', '.join(annex.SHRINKING)}")
    module = annex.load(f"{annex.SHRINKING[name]}.shrink")
    kinds = [kind for kind in vars(module).values() if getattr(kind, "name", None) == name]
    return cast(type[Method], kinds[0])


def parse(text: str) -> Method:
    """`prune-heads:share=0.4,by=random` as a method; lists are written `0/2/4`."""
    name, _, rest = text.partition(":")
    kind = method_named(name)
    names = [f.name for f in kind.options()]
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or key not in names:
            offered = ", ".join(names) or "none at all"
            raise InputError(
                f"{part!r} is no option of {name}; write key=value, with one of: {offered}"
            )
        values[key] = _value(hints[key], value, f"{name}:{key}")
        if key == "seed" and values[key] < 0:
            raise _wrong(f"{name}:{key}", value, "a whole number from 0 on")
    return kind(**values)


def _value(kind: Any, text: str, where: str) -> Any:
    """A value of the type that a field declares."""
    origin = get_origin(kind)
    # The only unions of options are `X | None`.
    if origin in (Union, types.UnionType):
        if text == "none":
            return None
        return _value(get_args(kind)[0], text, where)
    if origin is tuple:
        each = () if text == "none" else text.split("/")
        return tuple(_value(get_args(kind)[0], one, where) for one in each)
    if origin is Literal:
        options = {str(option): option for option in get_args(kind)}
        if text not in options:
            raise _wrong(where, text, f"one of {', '.join(options)}")
        return options[text]
    if kind is bool:
        if text not in ("true", "false"):
            raise _wrong(where, text, "true or false")
        return text == "true"
    try:
        return kind(text)
    except ValueError:
        noun = {int: "a whole number", float: "a number"}[kind]
        raise _wrong(where, text, noun) from None


def _wrong(where: str, text: str, expected: str) -> InputError:
    return InputError(f"{where} is {text!r}; expected {expected}")


def described() -> list[tuple[str, str, str]]:
    """Each method: its name, what it does, and its options with their defaults."""
    rows = []
    for name in annex.SHRINKING:
        try:
            kind = method_named(name)
        except SpecError:  # its folder was taken out
            continue
        hints = typing.get_type_hints(kind)
        options = [f"{f.name}={_default(f.default, hints[f.name])}" for f in kind.options()]
        rows.append((name, (kind.__doc__ or "").splitlines()[0], ", ".join(options)))
    return rows


def _default(value: Any, kind: Any) -> str:
    """A default value as text, followed by the other choices."""
    if get_origin(kind) is Literal:
        return "|".join([str(value), *(str(one) for one in get_args(kind) if one != value)])
    if isinstance(value, tuple):
        return "/".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
