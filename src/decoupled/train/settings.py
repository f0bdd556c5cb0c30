"""What a command that trains is given: its options, and fields of a recipe by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from decoupled.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class PairTraining:
    """The options of `distill`, `tune` and `shrink` that decide a run.

    An unfinished run goes on if all of them and its recipe are what they were.
    """

    model: str
    data: tuple[str, ...]
    task: str
    recipe: str
    teacher: str | None = None
    spec: str | None = None
    """File that describes a student which begins at random; the model then teaches it."""
    at: int | None = None
    projection: int | None = None
    one_way: str | None = None
    methods: tuple[str, ...] = ()
    """Of `shrink`."""


@dataclass(frozen=True, kw_only=True)
class Adapting:
    """The options of `adapt` that decide a run."""

    index: str
    teacher: tuple[str, ...]
    queries: str | None
    keep_index: bool
    minutes: float | None
    limit: int


def recipe_changes(
    settings: Sequence[str] | None, *, seed: int, **named: float | None
) -> dict[str, Any]:
    """Fields of the recipe by dotted name; `named` are those of the optimiser, `--set` has the last word."""
    changes: dict[str, Any] = {
        f"optimiser.{name}": value for name, value in named.items() if value is not None
    }
    changes["seed"] = seed
    for setting in settings or ():
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise OptionError(
                "set", f"is {setting!r}; write name=value, for example weights.kd=0.5"
            )
        try:
            changes[name] = json.loads(text)
        except ValueError:
            changes[name] = text
    return changes
