"""Fitting the rows that stand in for the other text."""

import numpy as np
import pytest
import torch

from decoupled.errors import InputError
from decoupled.measure.agreement import Case, outputs
from decoupled.methods.stand_in.fit import with_stand_in
from decoupled.model.model import Model
from decoupled.search.engine import Engine

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu") for b in ("red", "cat", "sun", "oak")]


def made_pairs(count: int) -> list[tuple[str, str]]:
    draw = np.random.default_rng(3)
    passages = [" ".join(draw.choice(WORDS, 12)) for _ in range(count)]
    return [(" ".join(passage.split()[2:5]), passage) for passage in passages]


@pytest.mark.parametrize("head", ["rank", "span", "classes"])
def test_a_fit_changes_only_the_rows_and_is_repeatable(model, head):
    split = Model.split(model("bert", head), at=1)
    one, two = (with_stand_in(split, made_pairs(20), rows=4, steps=3) for _ in range(2))
    assert one.fingerprint == two.fingerprint != split.fingerprint
    fitted = one.net.state_dict()
    for name, tensor in split.net.state_dict().items():
        assert torch.equal(fitted[name], tensor), name
    assert all(parameter.requires_grad for parameter in one.net.parameters())


def test_a_fit_brings_scores_towards_those_of_the_joint_model(model):
    whole = model("bert", "rank")
    split, pairs = Model.split(whole, at=2), made_pairs(60)
    cases = [Case(query=q, passages=tuple(p for _, p in pairs[:20])) for q, _ in pairs[30:45]]

    def scores(model: Model) -> np.ndarray:
        engine = Engine(model)
        return np.array([outputs(engine, case, "rank") for case in cases])

    joint = scores(Model.split(whole, at=0))

    def error(model: Model) -> float:
        return float((scores(model) - joint).std(1).mean())

    assert error(with_stand_in(split, pairs, steps=80)) < 0.95 * error(split)


def test_no_pairs_are_refused(model):
    with pytest.raises(InputError, match="give at least one"):
        with_stand_in(Model.split(model("bert", "rank"), at=1), [])
