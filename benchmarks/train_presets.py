"""The runs of each experiment: grids in presets.json, which `train_suite.py --preset NAME` executes.

An entry is a run. Lists of seeds, datasets, splits or widths make a grid of it, in whose texts `{seed}` and
the like stand for its values; `set` names groups of recipe fields (`sets`), the later one with the last word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from task_data import PRESETS as FILE

AXES = ("seed", "dataset", "split", "projection")
PRESETS = [name for name in FILE if name not in ("datasets", "sets", "untrained")]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run. `start` and `teacher` name a run, a folder, or `base`."""

    name: str
    dataset: str
    split: int = 0
    start: str = "base"
    teacher: str | None = None
    recipe: str = "plain"
    set: dict[str, Any] = field(default_factory=dict)
    """Fields of the recipe by dotted name."""
    seed: int = 0
    positions: str | None = None
    cross_embed: str = "none"
    projection: int | None = None
    one_way: Literal["auto"] | None = None
    """`auto`: every cross layer that the head allows is one-way."""
    extra: int = 0
    """Copies of the last layer added on top."""
    augment: dict[str, float] = field(default_factory=dict)
    """`shuffled` and `cropped` pairs, as shares of the data."""
    limit: int | None = None
    """Groups to train on; None is all."""
    tune: float = 0.05
    """Share of the training data that is set aside to choose between runs."""
    bits: tuple[int | None, ...] = (None,)
    shrink: tuple[str, ...] = ()
    """Methods that make the start smaller, before, while and after it is trained."""
    train: bool = True
    variant: str | None = None
    """What the report calls it; a run without is not drawn there."""
    curve: str | None = None
    """The curve of the report that it is a point of."""

    def needs(self) -> set[str]:
        """Names of the runs that must be over before this one."""
        return {self.start, self.teacher or "base"} - {"base"}

    @property
    def heavy(self) -> bool:
        """Does it train on long texts, which fill a good part of a GPU?"""
        return self.train and self.dataset.startswith(("squad", "race", "boolq"))


def preset(name: str) -> list[Run]:
    """The runs of a preset, a whole seed before the next."""
    runs = [run for entry in FILE[name] for run in grid(entry)]
    return sorted(runs, key=lambda run: run.seed)


def grid(entry: dict[str, Any]) -> Iterator[Run]:
    """The runs of an entry."""
    axes = [name for name in AXES if isinstance(entry.get(name), list)]
    for values in product(*(entry[name] for name in axes)):
        chosen = {**entry, **dict(zip(axes, values, strict=True))}
        yield read_run(filled(chosen, {name: chosen.get(name) for name in AXES}))


def filled(value: Any, names: dict[str, Any]) -> Any:
    """The value with every text of it filled in."""
    if isinstance(value, str):
        return value.format(**names)
    if isinstance(value, list):
        return [filled(each, names) for each in value]
    return {k: filled(v, names) for k, v in value.items()} if isinstance(value, dict) else value


def read_run(data: dict[str, Any]) -> Run:
    """A run from JSON; `set` may name groups of fields, and one of them may carry a limit."""
    settings = data.get("set", {})
    if isinstance(settings, list):
        settings = {k: v for name in settings for k, v in FILE["sets"][name].items()}
        data = {**data, **({"limit": settings.pop("limit")} if "limit" in settings else {})}
    lists = {name: tuple(data[name]) for name in ("bits", "shrink") if name in data}
    return Run(**{**data, **lists, "set": settings})
