"""Hops between linked passages: what travels along a link, and what does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import decoupled as dc
from decoupled.errors import InputError, SpecError
from decoupled.measure.counts import parameters, work
from decoupled.methods.hop.part import Hop
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.model import Model
from decoupled.model.parts.linear import WHOLE
from decoupled.model.spec import ModelSpec
from decoupled.runtime.open import open_runtime
from decoupled.runtime.torch import TorchRuntime
from decoupled.train.data.batches import Batches
from decoupled.train.data.prepare import prepare
from decoupled.train.recipe import Distillation, Optimiser, Recipe, Weights
from toy import span_pairs

CHAIN = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]]).bool()


@pytest.fixture(scope="module")
def plain(model) -> Model:
    return Model.split(model("bert", "span", num_hidden_layers=4), at=1)


@pytest.fixture(scope="module")
def hopping(plain) -> Model:
    return apply(plain, parse("hop:heads=4"))


def trained(hopping: Model, *, layers: int = 2) -> Model:
    """With hops in so many layers, the first cross layers, that take from what they hear."""
    kept = [
        replace(layer, more=() if n >= 1 + layers else layer.more)
        for n, layer in enumerate(hopping.spec.layers)
    ]
    encoder = replace(hopping.spec.encoder, layers=tuple(kept))
    made = hopping.rebuild(replace(hopping.spec, encoder=encoder), {})
    torch.manual_seed(0)
    for block in made.net.stack.hop.values():
        for matrix in (block.query, block.key, block.value, block.mix):
            torch.nn.init.normal_(matrix.weight, std=0.3)
    return made


def logits(made: Model, links: torch.Tensor | None, last: int = 30) -> torch.Tensor:
    """Of one query and three passages, of which the last begins with that token."""
    ids = torch.tensor([[8, 9, 10, 11], [12, 13, 14, 15], [last, 17, 18, 19]])
    asked, real = torch.tensor([[5, 6, 7]]), torch.ones(3, 4, dtype=torch.bool)
    with torch.no_grad():
        states = made.net.input("passage", ids, real)[0]
        query = made.net.input("query", asked, real[:1, :3])[0].expand(3, -1, -1)
        sides = query, real[:, :3], states, real
        return made.net.cross(*sides, heads=["span"], links_BB=links)["span"]


def test_new_hops_change_nothing(plain, hopping):
    expected = logits(plain, None)
    for links in (None, CHAIN):
        assert (logits(hopping, links) - expected).abs().max() < 1e-6


def test_without_links_there_is_no_message(hopping):
    made = trained(hopping)
    alone = logits(made, None)
    assert torch.equal(logits(made, torch.zeros(3, 3).bool()), alone)
    assert (logits(made, CHAIN) - alone).abs().max() > 1e-3
    one = CHAIN.clone()
    one[0] = False
    assert (logits(made, one)[0] - alone[0]).abs().max() < 1e-6


@pytest.mark.parametrize("layers", [1, 2])
def test_a_message_goes_one_link_a_layer(hopping, layers):
    made = trained(hopping, layers=layers)
    before, after = logits(made, CHAIN), logits(made, CHAIN, last=31)
    assert (before[1] - after[1]).abs().max() > 1e-5
    reached = float((before[0] - after[0]).abs().max())
    assert (reached > 1e-6) == (layers == 2)


def test_passages_in_another_order_give_the_same(hopping):
    made, order = trained(hopping), torch.tensor([2, 0, 1])
    ids = torch.randint(5, 40, (3, 6))
    real = torch.ones(3, 6, dtype=torch.bool)
    with torch.no_grad():
        states = made.net.input("passage", ids, real)[0]
        straight = made.net.cross(states, real, states, real, heads=["span"], links_BB=CHAIN)
        moved = states[order]
        links = CHAIN[order][:, order]
        turned = made.net.cross(moved, real, moved, real, heads=["span"], links_BB=links)
    assert (turned["span"] - straight["span"][order]).abs().max() < 1e-5


def test_only_the_first_row_hears(hopping):
    made, seen = trained(hopping, layers=1), {}
    real, x = torch.ones(3, 5, dtype=torch.bool), torch.randn(3, 5, made.spec.encoder.width)

    def after(links):
        rows = []
        with torch.no_grad():
            joined, frame = made.net.join(x, real, x, real)
            frame.links_BB = links
            made.net.stack(joined, frame, first=1, observe=lambda c, x, y: rows.append(y))
        return rows

    seen = [(a - b).abs().amax((0, 2)) for a, b in zip(after(None), after(CHAIN), strict=True)]
    assert seen[0][0] > 1e-3 and seen[0][1:].max() == 0 and seen[1][1:].min() > 1e-6


def test_parameters_and_multiplications_are_those_published(plain, hopping):
    d = plain.spec.encoder.width
    added = parameters(hopping.spec).total - parameters(plain.spec).total
    assert added == 2 * (5 * d * d + d)
    tensors = Hop(heads=12).matrices(768).items()
    assert sum(m.inputs * m.outputs + m.bias * m.outputs for _, m in tensors) == 2_949_888
    more = work(hopping.spec, query=4, passage=9).cross - work(plain.spec, query=4, passage=9).cross
    attention_and_ffn = more - 2 * (5 * d * d + 2 * d)
    assert attention_and_ffn == 0
    assert Hop(heads=4).macs(WHOLE, d, rows=7, tokens=9) == 5 * d * d + 2 * d


def test_states_stay_as_they_were_and_old_indexes_open(plain, hopping, tmp_path):
    assert hopping.fingerprint == plain.fingerprint
    assert from_json(ModelSpec, to_json(hopping.spec)) == hopping.spec
    hopping.save(tmp_path / "hop")
    assert Model.load(tmp_path / "hop").spec == hopping.spec
    with pytest.raises(InputError, match="it lacks hop blocks"):
        open_runtime(tmp_path / "hop", name="openvino")


def test_what_cannot_hop_is_refused(plain, hopping):
    with pytest.raises(SpecError, match=r"layer 1 has hop hop, which reads both.*choose 0\.\.1"):
        Model.split(hopping, at=2)
    with pytest.raises(SpecError, match="5 hop heads do not divide a width of 32"):
        apply(plain, parse("hop:heads=5"))
    with pytest.raises(SpecError, match="leaves no cross layer before the last"):
        apply(Model.split(plain, at=3), parse("hop:heads=4"))


def test_it_learns_from_groups_of_passages(hopping):
    pairs = []
    for pair in span_pairs(16):
        other = replace(pair, passage="wall lake wall lake", answers=())
        pairs += [pair, other]
    name = "stack.hop.1.mix.weight"
    recipe = Recipe(
        optimiser=Optimiser(epochs=1, batch=4),
        settings=Distillation(weights=Weights(kd=0)),
        precision="fp32",
    )
    after = dc.distill(hopping, data=pairs, task="squad2", recipe=recipe)
    half = hopping.spec.encoder.width
    moved = after.tensors()[name][:, half:]
    assert np.abs(moved).max() > 0, "nothing was taken from what was heard"
    with pytest.raises(
        InputError, match=r"question 1 of the data has 1 windows .*question 0 has 2"
    ):
        dc.distill(hopping, data=pairs[:3], task="squad2", recipe=recipe)


def test_training_links_passages_as_asking_does(hopping):
    pairs = [
        replace(pair, passage=text, title=title, answers=())
        for pair in span_pairs(3)
        for title, text in (("Inari", "a lake"), ("Folder", "holds Inari"), ("Oslo", "a wall"))
    ]
    made = prepare(pairs, hopping, "squad2").examples(hopping)
    assert made.links is not None and made.links.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]] * 3
    (batch,) = Batches(made, torch.device("cpu"), pad=0).walk([np.array([2, 0])])
    expected = torch.block_diag(*[torch.from_numpy(made.links[:3]).float()] * 2).bool()
    assert torch.equal(batch.links, expected)
    assert made.digest() != replace(made, links=None).digest()
    untitled = prepare([replace(pair, title="") for pair in pairs], hopping, "squad2")
    (batch,) = Batches(untitled.examples(hopping), torch.device("cpu"), pad=0).walk([np.array([1])])
    assert batch.links.sum() == 6


def test_links_reach_the_runtime(hopping):
    made = trained(hopping)
    runtime = TorchRuntime(made)
    passages = runtime.encode("passage", [np.array([8, 9, 10]), np.array([12, 13])]).states
    query = runtime.encode("query", [np.array([5, 6])]).states
    both = ~np.eye(2, dtype=bool)
    alone = runtime.cross(query, passages, ("span",))["span"].values
    linked = runtime.cross(query, passages, ("span",), links=both)["span"].values
    assert np.abs(alone - linked).max() > 1e-4
