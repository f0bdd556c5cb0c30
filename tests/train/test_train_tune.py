from __future__ import annotations

import pytest

from decoupled.errors import InputError
from decoupled.lab.tune import RATES, START, TEMPERATURES, read_journal, search
from decoupled.train.recipe import Recipe, recipe_named

optuna = pytest.importorskip("optuna")


def hill(recipe: Recipe) -> float:
    """Highest at α=1.2, β=0.4, γ=0.6 and a temperature of 4; the rate makes no difference."""
    w, t = recipe.settings.weights, recipe.settings.temperature
    return -((w.kd - 1.2) ** 2 + (w.lrs - 0.4) ** 2 + (w.task - 0.6) ** 2 + (t / 4 - 1) ** 2)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune") / "journal.jsonl"
    calls = []

    def train(recipe: Recipe) -> float:
        calls.append(recipe)
        return hill(recipe)

    return search(train, trials=14, journal=path), calls, path


def test_the_search_climbs_and_keeps_to_the_grid(searched):
    trials, calls, _ = searched
    first = calls[0].settings.weights
    assert (first.kd, first.lrs, first.task) == START
    assert START == (0.5, 0.2, 0.3), "as published"
    assert trials[0].score > hill(calls[0]) and trials[0].score > -0.5
    for trial in trials:
        *weights, temperature, lr = trial.settings
        assert all(0.1 <= w <= 2.0 and round(w, 1) == w for w in weights)
        assert temperature in TEMPERATURES
        assert lr == float(f"{lr:.2g}") and min(RATES) * 5e-5 * 0.9 < lr < max(RATES) * 5e-5 * 1.1
    assert len({t.settings for t in trials}) == len(trials)
    assert {call.optimiser.lr for call in calls} == {t.settings[-1] for t in trials}


def test_a_search_goes_on_from_its_journal(searched):
    trials, _, path = searched
    before = len(read_journal(path))
    again = []

    def train(recipe: Recipe) -> float:
        again.append(recipe)
        return hill(recipe)

    assert search(train, trials=before, journal=path) == trials and not again
    more = search(train, trials=before + 2, journal=path)
    assert len(again) <= 2 and len(more) == before + len(again)
    assert len(read_journal(path)) == len(more)


def test_the_recipe_of_the_figures_is_tried_after_the_published_weights():
    calls = []
    search(lambda recipe: float(calls.append(recipe) or 0), trials=2, base=recipe_named("distill"))
    assert calls[1].settings == recipe_named("distill").settings


def test_the_search_learns_from_every_trial(monkeypatch):
    heard, tell = [], optuna.study.Study.tell

    def hear(study, trial, value):
        heard.append(value)
        return tell(study, trial, value)

    monkeypatch.setattr(optuna.study.Study, "tell", hear)
    found = search(hill, trials=4)
    assert sorted(set(heard), reverse=True) == [trial.score for trial in found]
    assert heard[0] == pytest.approx(-(0.7**2 + 0.2**2 + 0.3**2 + 0.5**2)), "the published weights"


def test_a_damaged_journal_names_its_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"settings": [1, 1, 1, 2, 0.1], "score": 2}\n{"settings": [1]}')
    with pytest.raises(
        InputError, match=r"journal.jsonl:2 is .* expected a trial .*remove the line"
    ):
        read_journal(path)
    with pytest.raises(InputError, match="trials=0; choose at least 1"):
        search(hill, trials=0)
