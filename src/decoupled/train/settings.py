"""Fields of a recipe as a command line writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from decoupled.errors import OptionError


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
