"""Adaptive depth: exits that answer for every head, their rules, and what each pair is read with."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from decoupled.errors import InputError, SpecError
from decoupled.index.encode import encode_texts
from decoupled.methods.exits.depth import (
    DEPTH,
    AdaptiveRuntime,
    Depth,
    calibrated,
    log_taken,
    oracle,
    signals,
)
from decoupled.methods.exits.model import with_exits
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.model import Model
from decoupled.model.spec import ModelSpec
from decoupled.runtime.torch import TorchRuntime
from decoupled.search.engine import Engine
from decoupled.train.data.batches import Batches
from decoupled.train.data.prepare import prepare
from decoupled.train.data.tasks import TASKS
from decoupled.train.evaluate import asked_metrics, evaluate_examples
from decoupled.train.recipe import override
from decoupled.train.run import Data, Setting, train_model
from toy import class_pairs, span_pairs

TEXTS = [f"the {word} by the sea in year {n}" for n in range(5) for word in ("town", "old moon")]
NEVER = (1.0, 1.0)


def exiting(model, kind, family="bert", **more):
    """A split at 1 of 4 layers, whose exits after 2 and 3 have weights of their own."""
    made = Model.split(model(family, kind, num_hidden_layers=4, **more), at=1)
    made = with_exits(made, (kind,), halts=True)
    torch.manual_seed(1)
    for parameter in made.net.exits.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


@pytest.fixture(params=["rank", "span", "classes"])
def kind(request):
    return request.param


def pairs_for(made):
    runtime = TorchRuntime(made)
    windows = [w.ids for group in made.tokenizer.windows(TEXTS) for w in group]
    query = encode_texts(runtime, "query", [made.tokenizer.query("the river")]).states
    return query, encode_texts(runtime, "passage", windows).states


def read(made, kind, depth):
    runtime = AdaptiveRuntime(made, depth)
    return runtime.cross(*pairs_for(made), (kind,))[kind].values, runtime


def cut_off(made, kind, layer):
    """The same encoder without the layers above an exit, whose head it has."""
    layers = made.spec.layers[:layer]
    spec = replace(made.spec, exits=(), encoder=replace(made.spec.encoder, layers=layers))
    cut = made.rebuild(spec, {})
    head = made.net.exits[made.spec.exits[layer - 2].key(kind)]
    cut.net.heads[kind].load_state_dict(head.state_dict())
    return TorchRuntime(cut).cross(*pairs_for(cut), (kind,))[kind].values


@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2"])
def test_a_fixed_exit_is_the_model_cut_off_there(model, kind, family):
    made = exiting(model, kind, family)
    for layer in (2, 3):
        values, runtime = read(made, kind, Depth(rule="layer", layer=layer))
        assert np.allclose(values, cut_off(made, kind, layer), atol=1e-5)
        assert runtime.left == {layer: len(TEXTS)}


@pytest.mark.parametrize("rule", ["confidence", "halt"])
def test_no_threshold_passed_is_the_whole_model(model, kind, rule):
    made = exiting(model, kind)
    whole = TorchRuntime(made).cross(*pairs_for(made), (kind,))[kind].values
    values, runtime = read(made, kind, Depth(rule=rule, thresholds=NEVER))
    assert np.allclose(values, whole, atol=1e-6) and runtime.left == {4: len(TEXTS)}
    assert runtime.shares == {"4": 1.0, "layers_run": 1.0}


@pytest.mark.parametrize("rule", ["confidence", "halt"])
def test_each_pair_has_the_logits_of_the_exit_where_it_stopped(model, kind, rule):
    made, deeper = exiting(model, kind), []
    ends = {layer: cut_off(made, kind, layer) for layer in (2, 3)}
    ends[4] = TorchRuntime(made).cross(*pairs_for(made), (kind,))[kind].values
    query, passages = pairs_for(made)
    for level in (0.0, 0.3, 0.5, 0.7, 1.0):
        runtime = AdaptiveRuntime(made, Depth(rule=rule, thresholds=(level, level)))
        logits = runtime.cross(query, passages, (kind,))[kind]
        bounds = np.cumsum([0, *logits.lengths])
        matching = [
            [np.allclose(logits.values[a:b], ends[layer][a:b], atol=1e-5) for layer in (2, 3, 4)]
            for a, b in itertools.pairwise(bounds)
        ]
        assert all(any(row) for row in matching)
        assert runtime.left.total() == len(TEXTS)
        deeper.append(runtime.shares["layers_run"])
    assert deeper == sorted(deeper) and deeper[0] < deeper[-1] == 1.0


def test_a_pair_that_goes_on_is_read_from_where_it_stopped(model):
    made, rows = exiting(model, "rank"), []
    kept = made.net.stack.forward

    def counted(x, frame, *, first=0, last=None, **how):
        rows.append((len(x), first, last))
        return kept(x, frame, first=first, last=last, **how)

    made.net.stack.forward = counted
    query, passages = pairs_for(made)
    rows.clear()
    signal = AdaptiveRuntime(made, Depth(rule="halt", thresholds=(0.5, 0.5)))
    signal.cross(query, passages, ("rank",))
    assert [(first, last) for _, first, last in rows[:2]] == [(1, 2), (2, 3)]
    assert rows[0][0] == len(TEXTS) and rows[1][0] == len(TEXTS) - signal.left[2]


def test_questions_texts_and_pairs_are_asked_through_the_engine(model):
    span, classes = exiting(model, "span"), exiting(model, "classes")
    depth = Depth(rule="confidence", thresholds=(0.3, 0.3))
    runtime = AdaptiveRuntime(classes, depth)
    labels = Engine(runtime).classify([("the river", text) for text in TEXTS])
    assert len(labels) == len(TEXTS) == runtime.left.total()
    pairs = span_pairs(6)
    runtime = AdaptiveRuntime(span, Depth(rule="layer", layer=4))
    scores = asked_metrics(Engine(runtime), pairs, TASKS["squad"], lambda count: None)
    assert scores == asked_metrics(
        Engine(TorchRuntime(span)), pairs, TASKS["squad"], lambda count: None
    )


def test_the_oracle_weighs_likelihood_against_depth():
    likelihood = torch.tensor([[-3.0, -1.0, -0.9], [-0.1, -0.2, -5.0]])
    assert oracle(likelihood, 0.0).tolist() == [2, 0], "the best"
    assert oracle(likelihood, 0.5).tolist() == [1, 0]
    assert oracle(likelihood, 1e6).tolist() == [0, 0], "the first"
    taken = log_taken(torch.tensor([[0.3, -2.0], [50.0, 0.0]])).exp()
    assert torch.allclose(taken.sum(1), torch.ones(2))
    stop = torch.tensor([0.3, -2.0]).sigmoid()
    assert torch.allclose(taken[0, :2], torch.stack([stop[0], (1 - stop[0]) * stop[1]]))


def test_thresholds_keep_to_the_loss_that_is_allowed():
    sure = np.array([[0.9], [0.8], [0.7], [0.6]])
    right = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    strict = calibrated("confidence", sure, right, 0.0)
    stopped = sure[:, 0] > strict.thresholds[0]
    assert stopped.tolist() == [True, True, False, False], "the third would be wrong"
    generous = calibrated("confidence", sure, right, 0.25)
    assert (sure[:, 0] > generous.thresholds[0]).sum() == 3


def test_exits_learn_and_halt_while_the_rest_stands_still(model):
    made = exiting(model, "classes")
    names = made.spec.head("classes").labels
    pairs = [replace(pair, label=names[pair.label == "yes"]) for pair in class_pairs(32)]
    ready = prepare(pairs, made, "pairs")
    examples = ready.examples(made)
    changes = {"precision": "fp32", "optimiser.epochs": 6.0, "optimiser.batch": 8}
    recipe = override(DEPTH, {**changes, "watch.log_every": 4})
    lines = []
    data, how = Data(task=ready.task, train=examples), Setting(device="cpu", progress=lines.append)
    trained, _ = train_model(made, data, recipe, setting=how)
    old, new = made.net.state_dict(), trained.net.state_dict()
    changed = {name.split(".")[0] for name in new if not torch.equal(old[name], new[name])}
    assert changed == {"exits"}
    moved = {name for name in new if "halt" in name and not torch.equal(old[name], new[name])}
    assert len(moved) == 4 and lines[-1]["exits"] < lines[0]["exits"]
    assert trained.fingerprint == made.fingerprint
    batches = Batches.of(examples, trained.spec, torch.device("cpu"))
    sure, halts, right = signals(trained.net, batches, ready.task)
    assert sure.shape == halts.shape == (32, 2) and right.shape == (32, 3)
    assert evaluate_examples(trained.net, examples, ready.task)["accuracy"] == pytest.approx(
        100 * right[:, -1].mean()
    )
    whole, _ = train_model(made, data, override(recipe, {"whole": True}), setting=how)
    assert not torch.equal(
        whole.net.state_dict()["embedding.tokens.weight"], old["embedding.tokens.weight"]
    )


def test_exits_of_other_heads_are_saved_and_checked(model, tmp_path):
    made = exiting(model, "span")
    made.save(tmp_path / "m")
    again = Model.load(tmp_path / "m")
    assert again.spec == made.spec == from_json(ModelSpec, to_json(made.spec))
    depth = Depth(rule="halt", thresholds=(0.4, 0.6))
    assert np.array_equal(read(again, "span", depth)[0], read(made, "span", depth)[0])
    exits = made.spec.exits
    with pytest.raises(SpecError, match="exits have the heads rank, which this model lacks"):
        replace(made.spec, exits=(replace(exits[0], heads=("rank",)),))
    plain = with_exits(made, ("span",))
    for wrong, message in (
        (Depth(rule="layer", layer=9), "layer=9.* is not for exits after"),
        (Depth(rule="confidence"), "is not for exits after .*2, 3, 4"),
        (Depth(rule="halt", thresholds=NEVER), "no map that halts"),
    ):
        with pytest.raises(InputError, match=message):
            AdaptiveRuntime(plain, wrong)
    with pytest.raises(InputError, match="depth needs exits"):
        AdaptiveRuntime(Model.split(model("bert", "rank"), at=1), Depth(rule="layer", layer=2))
