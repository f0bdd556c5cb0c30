"""Recipes as earlier versions saved them mean what they meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decoupled.errors import InputError, SpecError
from decoupled.methods.pretrain.settings import PRETRAIN
from decoupled.model.jsonable import to_json
from decoupled.train.objectives.adapt import ADAPT
from decoupled.train.objectives.base import read_recipe
from decoupled.train.recipe import DISTILL, RECIPES, override

SAVED = json.loads((Path(__file__).parent / "recipes.json").read_text(encoding="utf-8"))
"""Written by the version whose recipes had the fields of all objectives."""
CHANGED = {
    "changed": override(
        DISTILL,
        {
            "weights.kd": 0.5,
            "squeeze.bits": 4,
            "kl": "reverse",
            "optimiser.ema": 0.9,
            "temperature": 3.0,
        },
    ),
    "changed adapt": override(
        ADAPT,
        {"reader.lrs": 0.0, "drawing.tokens": 160, "drawing.passages": 4, "squeeze.bits": 4},
    ),
    "changed mlm": override(PRETRAIN["mlm"], {"pretraining.tokens": 32, "pretraining.words": 3}),
}
"""The same changes, by the names that they had then."""


@pytest.mark.parametrize("name", sorted(SAVED.keys() - {"reader"}))
def test_a_saved_recipe_is_the_one_of_that_name(name):
    expected = {**RECIPES, "adapt": ADAPT, **PRETRAIN, **CHANGED}[name]
    if name == "decoupled":  # it had no tables then
        expected = override(expected, {"tables": "none"})
    assert read_recipe(SAVED[name]) == expected
    assert read_recipe(json.loads(json.dumps(to_json(expected)))) == expected


def test_names_of_today_change_the_same_fields():
    assert CHANGED["changed"].settings.projection.bits == 4
    assert override(DISTILL, {"projection.bits": 4}) == override(DISTILL, {"squeeze.bits": 4})
    assert override(ADAPT, {"weights.lrs": 0.5}) == override(ADAPT, {"reader.lrs": 0.5})
    assert override(ADAPT, {"tokens": 99}) == override(ADAPT, {"drawing.tokens": 99})
    with pytest.raises(InputError, match=r"'drawing.read' is no field of a recipe; choose one of"):
        override(DISTILL, {"drawing.read": 3})
    with pytest.raises(SpecError, match=r"Recipe\.projection\.start is 'x'; expected one of"):
        override(DISTILL, {"squeeze.start": "x"})


def test_fields_that_are_gone_are_passed_over_in_a_file_and_refused_in_a_change():
    plain = to_json(DISTILL)
    plain["watch"] |= {"compile": True, "packed": True}
    plain["settings"] |= {"splits": [1, 2]}
    plain["settings"]["projection"] |= {"loss": "margin"}
    assert read_recipe(plain) == DISTILL
    with pytest.raises(InputError, match=r"'watch\.compile' is no field of a recipe"):
        override(DISTILL, {"watch.compile": True})


def test_a_saved_recipe_of_another_program_is_refused():
    with pytest.raises(
        InputError, match="objective 'reader' is unknown; choose one of adapt, codec"
    ):
        read_recipe(SAVED["reader"])
