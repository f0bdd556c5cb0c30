"""What a command that trains is given: its options, and fields of a recipe by name."""

import json
from collections.abc import Mapping, Sequence
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
    """The methods of `shrink`."""

    def check(self, changes: Mapping[str, Any]) -> None:
        """Raise `InputError` for a task, layers, a recipe or a teacher that cannot be; loads no model."""
        from decoupled.model.written import one_way_layers
        from decoupled.train.data.tasks import check_task
        from decoupled.train.recipe import override, recipe_named

        check_task(self.task)
        one_way_layers(self.one_way)
        override(recipe_named(self.recipe), changes)
        if self.teacher == self.model and self.at is None:
            raise OptionError(
                "teacher", f"is the model itself ({self.model}); name another, or leave it out"
            )


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
    """Changes of a recipe by dotted name: `named` ones are of the optimiser, and `--set` overrides them."""
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
            # JSON first, so that numbers and booleans have their types; what is no JSON is a plain
            # string.
            changes[name] = json.loads(text)
        except ValueError:
            changes[name] = text
    return changes
